//! The text that a claim stores with its entry.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::backend::admission::Mode;
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::operator::cap;
use crate::operator::holder::{ClaimInfo, HolderInfo};
use crate::token::Token;

/// The longest text of somebody else's payload that is shown.
const SHOWN: usize = 200;
/// The longest reason of ours, with the claim's longest time behind it.
const LONGEST_REASON: usize = HolderInfo::MAX_BYTES + cap::MAX_BYTES;

/// The beginning of a text that may be as long as its engine allows, and how long it is.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}… ({} bytes in all)", &text[..text.floor_char_boundary(most)], text.len())
}

/// The holder and the reason of a claim, stored as text with its entry in engines that keep such a text (ZooKeeper, etcd).
/// It is compact JSON, for people and programs of any language. Grants depend on these parts of it: the numbers of
/// [`Mode::Permits`], the [`place`](ClaimRecord::place), and whether it is one of ours at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimRecord {
    /// The claim, if it is one of ours: settles what became of a request whose reply was lost.
    pub id: Option<ClaimId>,
    /// How it wants the resource. `None`: it does not say.
    pub mode: Option<Mode>,
    /// Who. Of somebody else's payload: its text as the label, and no host.
    pub holder: HolderInfo,
    /// Wall-clock microseconds since 1970 at which it arrived. Zero: unknown.
    pub since_micros: u64,
    /// The reason of the claim.
    pub reason: Option<String>,
    /// It has been evicted and runs out.
    pub evicted: bool,
    /// It is held by a lease that no process keeps.
    pub detached: bool,
    /// The number of the claim's place in the queue, where another entry than this one took it: it comes before all greater ones.
    pub place: Option<u64>,
    /// The caller's own data.
    pub data: Option<String>,
}

impl ClaimRecord {
    /// That of `claim`, which arrives now.
    pub fn of(claim: &Claim) -> ClaimRecord {
        ClaimRecord {
            id: Some(claim.id),
            mode: Some(claim.want().mode),
            holder: (*claim.holder).clone(),
            since_micros: claim.runtime.clock().wall_micros(),
            reason: claim.reason.as_deref().map(str::to_owned),
            evicted: false,
            detached: false,
            place: None,
            data: None,
        }
    }

    /// Somebody else's: what is left of it is its text.
    pub fn foreign(bytes: &[u8]) -> ClaimRecord {
        let text = cut(&String::from_utf8_lossy(bytes), SHOWN);
        let label: String = text.chars().filter(|c| !c.is_control()).collect();
        let label = if label.is_empty() { "unknown".to_owned() } else { label };
        ClaimRecord {
            id: None,
            mode: None,
            holder: HolderInfo { label, host: String::new(), pid: 0 },
            since_micros: 0,
            reason: None,
            evicted: false,
            detached: false,
            place: None,
            data: None,
        }
    }

    /// Reads what an entry has beside it. It never fails: what is not ours is [`foreign`](ClaimRecord::foreign), and what is
    /// missing or odd in ours is left out. Texts for operators are cut where they are longer than any of ours.
    pub fn read(bytes: &[u8]) -> ClaimRecord {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) if fields.contains_key("fencepost") => {
                ClaimRecord::from_fields(&fields)
            }
            _ => ClaimRecord::foreign(bytes),
        }
    }

    fn from_fields(fields: &Map<String, Value>) -> ClaimRecord {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
        let shown =
            |key: &str| fields.get(key).and_then(Value::as_str).map(|text| cut(text, HolderInfo::MAX_BYTES));
        let number = |key: &str| fields.get(key).and_then(Value::as_u64);
        let small = |key: &str| number(key).and_then(|n| u32::try_from(n).ok());
        let flag = |key: &str| fields.get(key).and_then(Value::as_bool).unwrap_or(false);
        let id = text("id").and_then(|hex| u128::from_str_radix(&hex, 16).ok());
        let mode = match text("mode").as_deref() {
            Some("exclusive") => Some(Mode::Exclusive),
            Some("shared") => Some(Mode::Shared),
            Some("permits") => match (small("n"), small("of")) {
                (Some(n), Some(of)) if n > 0 => Some(Mode::Permits { n, of }),
                _ => None,
            },
            _ => None,
        };
        ClaimRecord {
            id: id.map(ClaimId::from_u128),
            mode,
            holder: HolderInfo {
                label: shown("holder").unwrap_or_else(|| "unknown".to_owned()),
                host: shown("host").unwrap_or_default(),
                pid: small("pid").unwrap_or(0),
            },
            since_micros: number("since").unwrap_or(0),
            // The claim's longest time may stand behind it.
            reason: text("reason").filter(|text| text.len() <= LONGEST_REASON).or_else(|| shown("reason")),
            evicted: flag("evicted"),
            detached: flag("detached"),
            place: number("place"),
            data: text("data"),
        }
    }

    /// As it is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
        put("fencepost", 1.into());
        if let Some(id) = self.id {
            put("id", id.to_hex().into());
        }
        match self.mode {
            Some(Mode::Exclusive) => drop(put("mode", "exclusive".into())),
            Some(Mode::Shared) => drop(put("mode", "shared".into())),
            Some(Mode::Permits { n, of }) => {
                put("mode", "permits".into());
                put("n", n.into());
                put("of", of.into());
            }
            None => {}
        }
        put("holder", self.holder.label.clone().into());
        put("host", self.holder.host.clone().into());
        put("pid", self.holder.pid.into());
        put("since", self.since_micros.into());
        if let Some(reason) = &self.reason {
            put("reason", reason.clone().into());
        }
        if self.evicted {
            put("evicted", true.into());
        }
        if self.detached {
            put("detached", true.into());
        }
        if let Some(place) = self.place {
            put("place", place.into());
        }
        if let Some(data) = &self.data {
            put("data", data.clone().into());
        }
        Value::Object(fields).to_string().into_bytes()
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
            evicted: self.evicted,
            detached: self.detached,
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
            evicted: true,
            detached: true,
            place: Some(u64::MAX),
            data: Some("shard 7".into()),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for mode in [None, Some(Mode::Exclusive), Some(Mode::Shared), payload().mode] {
            let payload = ClaimRecord { mode, ..payload() };
            assert_eq!(ClaimRecord::read(&payload.to_bytes()), payload);
        }
        let plain = ClaimRecord {
            id: None,
            mode: None,
            reason: None,
            evicted: false,
            detached: false,
            place: None,
            data: None,
            ..payload()
        };
        assert_eq!(ClaimRecord::read(&plain.to_bytes()), plain);
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
            let payload = ClaimRecord::read(bytes);
            assert_eq!((payload.holder.label.as_str(), payload.id, payload.mode), (label, None, None));
        }
        let long = ClaimRecord::read(&[b'x'; 900_000]).holder.label;
        assert!(long.len() < SHOWN + 40 && long.ends_with("x… (900000 bytes in all)"), "{long}");
    }

    #[test]
    fn odd_fields_of_ours_are_left_out() {
        let odd = br#"{"fencepost":1,"id":"zz","mode":"permits","n":0,"of":"x","holder":7,"pid":-1,"since":"now","evicted":1}"#;
        let payload = ClaimRecord::read(odd);
        assert_eq!((payload.id, payload.mode, payload.since_micros), (None, None, 0));
        assert_eq!((payload.holder.pid, payload.evicted), (0, false));
        assert_eq!(payload.holder.label, "unknown");
    }

    #[test]
    fn long_texts_are_cut_with_a_word_on_their_length() {
        let long = "ü".repeat(450_000);
        let holder = HolderInfo { label: long.clone(), host: long.clone(), pid: 7 };
        let read = ClaimRecord::read(&ClaimRecord { holder, reason: Some(long), ..payload() }.to_bytes());
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
