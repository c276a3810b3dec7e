//! The object of a lock, as it is stored.

use std::time::Duration;

use bytes::Bytes;
use fencepost_core::{ClaimId, ClaimRecord, LaterFormat, Record, Token};
use serde_json::{Value, json};

/// The object of a free lock is smaller than this, unless its last eviction has a long reason, and that of a held one is not. So a listing
/// does not have to read most of the free ones.
pub(crate) const SMALLEST_HELD: u64 = 128;

/// A lock. It stays after its last holder left, so that its tokens grow.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct LockObject {
    /// The token of the last grant.
    pub(crate) token: u64,
    /// The number of this write. Some stores make an object's version from its content, so no two writes are equal.
    pub(crate) write: u64,
    pub(crate) holder: Option<Holding>,
    /// The last eviction. It stays until the next one, because other grants may begin and end before the evicted holder reads the object.
    pub(crate) evicted: Option<Evicted>,
}

/// An eviction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Evicted {
    /// The token of the grant that was evicted.
    pub(crate) token: u64,
    pub(crate) reason: String,
}

/// A grant.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Holding {
    pub(crate) record: ClaimRecord,
    /// The number of the holder's last write. While it is the same, the lease has not been renewed.
    pub(crate) beat: u64,
    /// For how long the grant lasts after that write.
    pub(crate) ttl: Duration,
    /// When that is, by the wall clock of the holder, in microseconds since 1970. It is shown to operators, and refuses a detached lease
    /// that has ended. It decides about no grant.
    pub(crate) until: u64,
}

impl LockObject {
    pub(crate) fn read(bytes: &[u8]) -> Result<LockObject, LaterFormat> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let object = Record { text, keep: Duration::ZERO }.object()?;
        let record = match object.get("holder") {
            Some(holder) => Some(ClaimRecord::read(holder.to_string().as_bytes())?),
            None => None,
        };
        Ok(LockObject::of(&object, record))
    }

    /// Reads an object whose holder is to be changed by itself, or shown to operators, whatever its format.
    pub(crate) fn read_any(bytes: &[u8]) -> (LockObject, Option<ClaimId>) {
        let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let id = object["holder"]["id"].as_str().and_then(|hex| u128::from_str_radix(hex, 16).ok());
        let record = object.get("holder").map(|holder| ClaimRecord::shown(holder.to_string().as_bytes()));
        (LockObject::of(&object, record), id.map(ClaimId::from_u128))
    }

    fn of(object: &Value, record: Option<ClaimRecord>) -> LockObject {
        let number = |key: &str| object[key].as_u64().unwrap_or_default();
        let holder = record.map(|record| Holding {
            record,
            beat: number("beat"),
            ttl: Duration::from_millis(number("ttl_ms")),
            until: number("until"),
        });
        let evicted = object["evicted"].as_object().map(|evicted| Evicted {
            token: evicted.get("token").and_then(Value::as_u64).unwrap_or_default(),
            reason: evicted.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
        });
        LockObject { token: number("token"), write: number("write"), holder, evicted }
    }

    /// Returns the object as it is stored in place of one with the write before it.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut object = json!({ "token": self.token, "write": self.write });
        if let Some(holder) = &self.holder {
            object["holder"] = serde_json::from_str(&holder.record.to_text()).unwrap_or_default();
            object["beat"] = holder.beat.into();
            object["ttl_ms"] = millis(holder.ttl).into();
            object["until"] = holder.until.into();
        }
        if let Some(evicted) = &self.evicted {
            object["evicted"] = json!({ "token": evicted.token, "reason": evicted.reason });
        }
        Record::new(object, Duration::ZERO).text.into()
    }

    pub(crate) fn last_token(&self) -> Option<Token> {
        (self.token > 0).then(|| Token::new(self.token))
    }

    /// Returns whether this claim holds the lock.
    pub(crate) fn is_held_by(&self, id: ClaimId) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.record.id == Some(id))
    }

    /// Returns whether its holder was told to stop, and still has the lock.
    pub(crate) fn is_evicted(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.record.evicted)
    }

    /// Returns the object that follows, with the same holder.
    pub(crate) fn next(&self) -> LockObject {
        LockObject { write: self.write + 1, ..self.clone() }
    }

    /// Returns the object that follows, without a holder.
    pub(crate) fn freed(&self) -> LockObject {
        LockObject { holder: None, ..self.next() }
    }

    /// Returns the object that follows with this grant, which has a new token.
    pub(crate) fn granted(&self, record: ClaimRecord, ttl: Duration, wall: u64) -> LockObject {
        let write = self.write + 1;
        let holder = Holding { record, beat: write, ttl, until: until(wall, ttl) };
        LockObject { token: self.token + 1, write, holder: Some(holder), evicted: self.evicted.clone() }
    }

    /// Returns the object that follows with the holder's lease renewed. `change` is made to its record.
    pub(crate) fn renewed(
        &self,
        ttl: Duration,
        wall: u64,
        change: impl FnOnce(&mut ClaimRecord),
    ) -> LockObject {
        let mut next = self.next();
        if let Some(holder) = &mut next.holder {
            (holder.beat, holder.ttl, holder.until) = (next.write, ttl, until(wall, ttl));
            change(&mut holder.record);
        }
        next
    }

    /// Returns why the grant with `token` was evicted, if it was.
    pub(crate) fn loss_of(&self, token: u64) -> Option<&str> {
        self.evicted.as_ref().filter(|evicted| evicted.token == token).map(|evicted| &*evicted.reason)
    }
}

/// Returns the wall clock's time `ttl` after `wall`, both in microseconds.
fn until(wall: u64, ttl: Duration) -> u64 {
    wall.saturating_add(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))
}

/// A part of a millisecond counts as a whole one, because others must not take a lease as shorter than its holder does.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fencepost_core::{HolderInfo, Mode};

    use super::*;

    fn record() -> ClaimRecord {
        ClaimRecord {
            id: Some(ClaimId::from_u128(7)),
            mode: Some(Mode::Exclusive),
            holder: HolderInfo::new("", "", 0),
            ..ClaimRecord::default()
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let free = LockObject { token: 3, write: 8, ..LockObject::default() };
        let held = free.granted(record(), Duration::from_secs(5), 1_000);
        assert_eq!((held.token, held.write), (4, 9));
        let evicted = Some(Evicted { token: 4, reason: "by \"me\"".into() });
        let marked = LockObject { evicted, ..held.clone() };
        for object in [free, held.freed(), held.renewed(Duration::from_secs(1), 2, |_| {}), held, marked] {
            assert_eq!(LockObject::read(&object.to_bytes()).unwrap(), object);
        }
    }

    #[test]
    fn a_free_lock_is_known_by_its_size() {
        let most = u64::MAX - 1;
        let free = LockObject { token: most, write: most, ..LockObject::default() };
        assert!((free.to_bytes().len() as u64) < SMALLEST_HELD);
        let held = LockObject::default().granted(record(), Duration::from_millis(1), 1);
        assert!(held.to_bytes().len() as u64 >= SMALLEST_HELD);
    }

    #[test]
    fn no_two_writes_are_equal() {
        let held = LockObject::default().granted(record(), Duration::from_secs(1), 1);
        let renewed = held.renewed(Duration::from_secs(1), 1, |_| {});
        assert_ne!(held.to_bytes(), renewed.to_bytes());
        assert_eq!(renewed.holder.as_ref().map(|holder| holder.beat), Some(2));
        let marked = renewed.next();
        assert_eq!(marked.holder.as_ref().map(|holder| holder.beat), Some(2), "that is no renewal");
        assert_ne!(marked.to_bytes(), renewed.to_bytes());
    }

    #[test]
    fn a_later_format_is_refused_and_shown() {
        let held = LockObject::default().granted(record(), Duration::from_secs(1), 1);
        let text = String::from_utf8(held.to_bytes().to_vec()).unwrap();
        for later in [text.replace("\"fencepost\":1", "\"fencepost\":2"), text.replacen(":1", ":2", 1)] {
            if later == text {
                continue;
            }
            let (shown, id) = LockObject::read_any(later.as_bytes());
            assert_eq!((shown.token, id), (1, Some(ClaimId::from_u128(7))));
        }
        let later = text.replace("\"fencepost\":1", "\"fencepost\":2");
        assert!(LockObject::read(later.as_bytes()).is_err());
    }

    #[test]
    fn only_the_evicted_grant_learns_of_its_eviction() {
        let evicted = Some(Evicted { token: 4, reason: "why".into() });
        let freed = LockObject { token: 4, evicted, ..LockObject::default() };
        let next = freed.granted(record(), Duration::from_secs(1), 1);
        for lock in [&freed, &next] {
            assert_eq!((lock.loss_of(3), lock.loss_of(4), lock.loss_of(5)), (None, Some("why"), None));
        }
        assert_eq!(next.freed().loss_of(4), Some("why"), "the next holder was quick");
    }
}
