//! The text that a claim stores with its entry.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::backend::admission::Mode;
use crate::backend::claim_id::ClaimId;
use crate::error::{Error, ErrorKind};
use crate::operator::holder::{ClaimInfo, HolderInfo};
use crate::token::Token;

/// The longest text of somebody else's payload that is shown.
const SHOWN: usize = 200;
/// The version of the formats of records.
const FORMAT: u64 = 1;

/// The beginning of a text that may be as long as its engine allows, and how long it is.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}… ({} bytes in all)", &text[..text.floor_char_boundary(most)], text.len())
}

/// A record that a later version wrote in a format which this version does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a record of the lock has format {0}, this program knows {FORMAT}; use one version of fencepost for all who share the locks, this one is older"
)]
pub struct LaterFormat(pub(crate) u64);

impl LaterFormat {
    /// The format that this version writes.
    pub(crate) const KNOWN: u64 = FORMAT;

    /// Refuses a record whose field says that it has a later format.
    pub(crate) fn check(format: Option<&Value>) -> Result<(), LaterFormat> {
        match format.and_then(Value::as_u64) {
            Some(format) if format > FORMAT => Err(LaterFormat(format)),
            _ => Ok(()),
        }
    }
}

impl From<LaterFormat> for Error {
    fn from(later: LaterFormat) -> Error {
        Error::new(ErrorKind::Configuration, later.to_string())
    }
}

/// A claim as it is written down, in all engines alike: compact JSON, for people and for programs of any language. An engine leaves out
/// what it keeps in another form, such as the mode in a column.
///
/// Grants depend on some parts of it: the [`mode`](ClaimRecord::mode) with its numbers, the [`position`](ClaimRecord::position), whether
/// it is one of ours at all, and in some engines its id and whether it was [`evicted`](ClaimRecord::evicted). A record of a later format is
/// refused, because it could say something that decides about a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClaimRecord {
    /// The claim, if it is one of ours: settles what became of a request whose reply was lost.
    pub id: Option<ClaimId>,
    /// How it wants the resource. `None`: it does not say.
    pub mode: Option<Mode>,
    /// The client that made it. Of somebody else's payload: its text as the label, and no host.
    pub holder: HolderInfo,
    /// Wall-clock microseconds since 1970 at which it arrived. Zero: unknown.
    pub since_micros: u64,
    /// The reason of the claim.
    pub reason: Option<String>,
    /// The [longest time](crate::Acquire::max_hold) for which its holder keeps it, in ms.
    pub max_hold: Option<Duration>,
    /// How long after its arrival it is granted at the latest, in ms.
    pub max_wait: Option<Duration>,
    /// It has been evicted and runs out.
    pub evicted: bool,
    /// It is held by a lease that no process keeps.
    pub detached: bool,
    /// The claim's position in the queue, in a record that was written later than that position was taken, such as the record of a permit.
    /// A smaller number comes first.
    pub position: Option<u64>,
    /// The number of the [whole](crate::Claim::whole) claim, if this is its part at one engine.
    pub whole: Option<u64>,
    /// The caller's own data.
    pub data: Option<String>,
    /// Fields that this version does not know. They are written again as they were read.
    pub more: Map<String, Value>,
    /// Its format, if that is a later one, which this version cannot read: see [`shown`](ClaimRecord::shown).
    pub later_format: Option<u64>,
}

impl ClaimRecord {
    /// Somebody else's: what is left of it is its text.
    pub fn foreign(bytes: &[u8]) -> ClaimRecord {
        let text = cut(&String::from_utf8_lossy(bytes), SHOWN);
        let label: String = text.chars().filter(|c| !c.is_control()).collect();
        let label = if label.is_empty() { "unknown".to_owned() } else { label };
        ClaimRecord { holder: HolderInfo::new(label, "", 0), ..ClaimRecord::default() }
    }

    /// Reads what an entry has beside it. Anything that is not ours is [`foreign`](ClaimRecord::foreign). Missing and odd fields
    /// of ours are left out. Texts for operators are cut where they are longer than any of ours.
    ///
    /// # Errors
    /// A record of a later format.
    pub fn read(bytes: &[u8]) -> Result<ClaimRecord, LaterFormat> {
        let Ok(Value::Object(fields)) = serde_json::from_slice(bytes) else {
            return Ok(ClaimRecord::foreign(bytes));
        };
        LaterFormat::check(fields.get("fencepost"))?;
        match fields.contains_key("fencepost") {
            false => Ok(ClaimRecord::foreign(bytes)),
            true => Ok(ClaimRecord::from_fields(fields)),
        }
    }

    /// Reads a record to show it in a listing. One of a later format is shown as unreadable: it must not hide the others.
    pub fn shown(bytes: &[u8]) -> ClaimRecord {
        ClaimRecord::read(bytes).unwrap_or_else(|later| ClaimRecord {
            holder: HolderInfo::new(format!("unreadable (format {})", later.0), "", 0),
            later_format: Some(later.0),
            ..ClaimRecord::default()
        })
    }

    fn from_fields(mut fields: Map<String, Value>) -> ClaimRecord {
        let mut take = |key: &str| fields.remove(key).unwrap_or_default();
        let small = |value: Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let millis = |value: Value| value.as_u64().map(Duration::from_millis);
        let text = |value: Value| value.as_str().map(str::to_owned);
        let shown = |value: Value| value.as_str().map(|text| cut(text, HolderInfo::MAX_BYTES));
        let flag = |value: Value| value.as_bool().unwrap_or(false);
        take("fencepost");
        let id = text(take("id")).and_then(|hex| u128::from_str_radix(&hex, 16).ok());
        let permits = (small(take("n")), small(take("of")));
        let mode = match (take("mode").as_str(), permits) {
            (Some("exclusive"), _) => Some(Mode::Exclusive),
            (Some("shared"), _) => Some(Mode::Shared),
            (Some("permits"), (Some(n), Some(of))) if n > 0 => Some(Mode::Permits { n, of }),
            _ => None,
        };
        ClaimRecord {
            id: id.map(ClaimId::from_u128),
            mode,
            holder: HolderInfo {
                label: shown(take("holder")).unwrap_or_else(|| "unknown".to_owned()),
                host: shown(take("host")).unwrap_or_default(),
                pid: small(take("pid")).unwrap_or(0),
            },
            since_micros: take("since").as_u64().unwrap_or(0),
            reason: shown(take("reason")),
            max_hold: millis(take("max_hold_ms")),
            max_wait: millis(take("max_wait_ms")),
            evicted: flag(take("evicted")),
            detached: flag(take("detached")),
            position: take("position").as_u64(),
            whole: take("whole").as_u64(),
            data: text(take("data")),
            more: fields,
            later_format: None,
        }
    }

    /// As it is written.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(160);
        let mut put = |key: &str, value: &dyn fmt::Display| {
            let begin = if text.is_empty() { '{' } else { ',' };
            let _ = write!(text, "{begin}\"{key}\":{value}");
        };
        let quoted = |text: &str| Value::from(text);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        put("fencepost", &FORMAT);
        if let Some(id) = self.id {
            put("id", &quoted(&id.to_hex()));
        }
        match self.mode {
            Some(Mode::Exclusive) => put("mode", &"\"exclusive\""),
            Some(Mode::Shared) => put("mode", &"\"shared\""),
            Some(Mode::Permits { n, of }) => {
                put("mode", &"\"permits\"");
                put("n", &n);
                put("of", &of);
            }
            None => {}
        }
        put("holder", &quoted(&self.holder.label));
        put("host", &quoted(&self.holder.host));
        put("pid", &self.holder.pid);
        for (key, number) in [
            ("since", Some(self.since_micros).filter(|since| *since > 0)),
            ("max_hold_ms", self.max_hold.map(millis)),
            ("max_wait_ms", self.max_wait.map(millis)),
            ("position", self.position),
            ("whole", self.whole),
        ] {
            if let Some(number) = number {
                put(key, &number);
            }
        }
        for (key, text) in [("reason", &self.reason), ("data", &self.data)] {
            if let Some(text) = text {
                put(key, &quoted(text));
            }
        }
        for (key, flag) in [("evicted", self.evicted), ("detached", self.detached)] {
            if flag {
                put(key, &flag);
            }
        }
        self.more.iter().for_each(|(key, value)| put(key, value));
        text.push('}');
        text
    }

    /// [`to_text`](ClaimRecord::to_text), as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_text().into_bytes()
    }

    /// As operators see it. `mode` is what the engine knows of it, `token` that of its grant if it holds, `now` the wall clock
    /// of the reader, `since` the engine's own word on when the entry arrived, for payloads that don't say; zero: it has none.
    pub fn into_info(self, mode: Mode, token: Option<Token>, now: u64, since: u64) -> ClaimInfo {
        let since_micros = if self.since_micros == 0 { since } else { self.since_micros };
        // An unknown time is no age.
        let now = if since_micros == 0 { 0 } else { now };
        ClaimInfo {
            token,
            since_micros,
            from_arrival: token.is_some(),
            age: Duration::from_micros(now.saturating_sub(since_micros)),
            reason: self.reason,
            max_hold: self.max_hold,
            max_wait: self.max_wait,
            evicted: self.evicted,
            detached: self.detached,
            whole: self.whole,
            later_format: self.later_format,
            ..ClaimInfo::new(self.holder, mode)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload() -> ClaimRecord {
        ClaimRecord {
            id: Some(ClaimId::from_u128(0x1234)),
            mode: Some(Mode::Permits { n: 2, of: 5 }),
            holder: HolderInfo { label: "me \"quoted\" ü".into(), host: "h".into(), pid: 7 },
            since_micros: 1_700_000_000_000_000,
            reason: Some("nightly".into()),
            max_hold: Some(Duration::from_secs(90)),
            max_wait: Some(Duration::from_millis(1)),
            evicted: true,
            detached: true,
            position: Some(u64::MAX),
            whole: Some(1 << 62),
            data: Some("shard 7".into()),
            more: Map::from_iter([("color".to_owned(), Value::from("a \"later\" field"))]),
            later_format: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for mode in [None, Some(Mode::Exclusive), Some(Mode::Shared), payload().mode] {
            let payload = ClaimRecord { mode, ..payload() };
            assert_eq!(ClaimRecord::read(&payload.to_bytes()).unwrap(), payload);
        }
        let plain = ClaimRecord { holder: payload().holder, ..ClaimRecord::default() };
        assert_eq!(ClaimRecord::read(&plain.to_bytes()).unwrap(), plain);
    }

    #[test]
    fn it_is_compact_json() {
        let text = String::from_utf8(payload().to_bytes()).unwrap();
        assert!(
            text.starts_with('{') && !text.contains('\n') && text.contains(r#""reason":"nightly""#),
            "{text}"
        );
    }

    #[test]
    fn what_others_write_is_shown_as_text() {
        for (bytes, label) in [
            (&b"10.0.0.7"[..], "10.0.0.7"),
            (b"", "unknown"),
            (b"{\"host\":\"h\"}", "{\"host\":\"h\"}"),
            (b"[1,2]", "[1,2]"),
            (b"a\nb\0c", "abc"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        ] {
            let payload = ClaimRecord::read(bytes).unwrap();
            assert_eq!((payload.holder.label.as_str(), payload.id, payload.mode), (label, None, None));
        }
        let long = ClaimRecord::read(&[b'x'; 900_000]).unwrap().holder.label;
        assert!(long.len() < SHOWN + 40 && long.ends_with("x… (900000 bytes in all)"), "{long}");
    }

    #[test]
    fn odd_fields_of_ours_are_left_out() {
        let odd = br#"{"fencepost":1,"id":"zz","mode":"permits","n":0,"of":"x","holder":7,"pid":-1,"since":"now","evicted":1}"#;
        let payload = ClaimRecord::read(odd).unwrap();
        assert_eq!((payload.id, payload.mode, payload.since_micros), (None, None, 0));
        assert_eq!((payload.holder.pid, payload.evicted), (0, false));
        assert_eq!(payload.holder.label, "unknown");
    }

    #[test]
    fn a_later_format_is_refused() {
        let error = Error::from(ClaimRecord::read(br#"{"fencepost":2,"mode":"exclusive"}"#).unwrap_err());
        assert!(error.is_configuration() && error.to_string().contains("format 2"), "{error}");
    }

    #[test]
    fn long_texts_are_cut_with_a_word_on_their_length() {
        let long = "ü".repeat(450_000);
        let holder = HolderInfo { label: long.clone(), host: long.clone(), pid: 7 };
        let long = ClaimRecord { holder, reason: Some(long), ..payload() };
        let read = ClaimRecord::read(&long.to_bytes()).unwrap();
        for text in [read.holder.label, read.holder.host, read.reason.unwrap()] {
            assert!(
                text.len() < HolderInfo::MAX_BYTES + 40 && text.ends_with("ü… (900000 bytes in all)"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_operator_sees_what_it_says() {
        let mut payload = payload();
        let now = payload.since_micros + 3_000_000;
        let info = payload.clone().into_info(Mode::Exclusive, Some(Token::new(9)), now, 1);
        assert_eq!((info.age, info.reason.as_deref()), (Duration::from_secs(3), Some("nightly")));
        assert!(info.evicted && info.holds() && info.from_arrival);
        assert!(info.to_string().contains(" for up to 3s"), "{info}");
        payload.since_micros = 0;
        assert_eq!(payload.clone().into_info(Mode::Shared, None, now, now - 5).age, Duration::from_micros(5));
        let unknown = ClaimRecord::foreign(b"x").into_info(Mode::Shared, None, now, 0);
        assert_eq!((unknown.age, unknown.to_string()), (Duration::ZERO, "x, shared".to_owned()));
    }
}
