//! The fields of a lock's hash, as lua/lock.lua lays them out.

use std::collections::HashSet;
use std::time::Duration;

use fencepost_core::{Claim, ClaimInfo, ClaimRecord, Info, Mode, Name, Token};

use redis::{Cmd, Value};

use crate::script::Pieces;
use crate::script::queue::{NOBODY, mode_bytes};

/// The part of a claim's field that never changes: mode, permits, client and [record](Claim::record).
pub(crate) struct Terms<'a> {
    mode: [u8; 9],
    client: &'a str,
    record: String,
}

impl<'a> Terms<'a> {
    pub(crate) fn of(claim: &Claim, client: &'a str) -> Terms<'a> {
        Terms { mode: mode_bytes(claim.want().mode), client, record: claim.record() }
    }

    /// As the end of an argument of a command, behind `first`.
    pub(crate) fn put(&self, command: &mut Cmd, first: &[u8]) {
        command.arg(Pieces(&[first, &self.mode, self.client.as_bytes(), self.record.as_bytes()]));
    }
}

/// Reads numbers off the front of a field.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A number that Lua had as a double: whole and below 2^53.
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(|bytes| f64::from_be_bytes(bytes) as u64)
    }
}

/// The record at the end of terms. Behind a zero byte, which no record has, stands who evicted the claim.
pub(crate) fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A claim as its field says.
struct Field {
    state: u8,
    deadline: u64,
    /// How long its lease lasts at most, in µs.
    lease: u64,
    number: u64,
    token: u64,
    since: u64,
    mode: Mode,
    detached: bool,
    client: [u8; 16],
    record: Vec<u8>,
}

impl Field {
    fn read(field: &[u8]) -> Option<Field> {
        let mut reader = Reader(field);
        let state = reader.byte()?;
        let (deadline, token, since) = (reader.number()?, reader.number()?, reader.number()?);
        let (lease, number) = (reader.number()?, reader.number()?);
        let mode = match (reader.byte()?, reader.u32()?, reader.u32()?) {
            // A marked one still reads: see lua/lock.lua.
            (1, _, of) if of % 2 == 1 => Mode::Shared,
            (1, _, _) => Mode::Exclusive,
            (2, _, _) => Mode::Shared,
            (_, n, of) => Mode::Permits { n, of },
        };
        let client: [u8; 16] = reader.bytes(16)?.try_into().ok()?;
        let record = text(reader.0).to_vec();
        let detached = client == *NOBODY;
        Some(Field { state, deadline, lease, number, token, since, mode, detached, client, record })
    }

    /// As a node of a quorum writes down who was refused: see lua/lock.lua.
    fn refused(entry: &[u8]) -> Option<Field> {
        let (since, fixed) = (entry.get(..8)?, entry.get(24..)?);
        Field::read(&[&[1][..], &[0; 16], since, &[0; 16], fixed].concat())
    }

    /// A tombstone is nobody's claim.
    fn holds(&self) -> bool {
        (2..=4).contains(&self.state)
    }

    /// May both hold?
    fn fits(&self, other: &Field) -> bool {
        matches!(
            (self.mode, other.mode),
            (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. })
        )
    }

    fn claim(self, now: u64) -> ClaimInfo {
        let token = self.holds().then(|| Token::new(self.token));
        let mut claim = ClaimRecord::shown(&self.record).into_info(self.mode, token, now, self.since);
        claim.from_arrival = false;
        // A deadline that is further away than the lease is long comes from an earlier clock: see `unpack_claim` in lua/lock.lua.
        let left = self.deadline.saturating_sub(now).min(self.lease);
        claim.expires_in = self.holds().then(|| Duration::from_micros(left));
        claim.evicted = self.state == 4;
        claim.detached = self.detached;
        claim
    }
}

/// The resource whose hash has these fields, as it stands at `now` on the server's clock (µs). `None`: these are none of a lock, or
/// of another version. `in_parts`: the hash changed while it was read, so that holders may be there who came one after the other.
pub(crate) fn info(name: &Name, fields: &[(Vec<u8>, Vec<u8>)], now: u64, in_parts: bool) -> Option<Info> {
    let mut last_token = None;
    let mut records = Vec::new();
    let mut alive = HashSet::new();
    for (field, value) in fields {
        match field.first() {
            Some(b's') => last_token = summary(value)?,
            Some(b'c') => records.extend(Field::read(value)),
            Some(b'p') if Reader(value).number().is_some_and(|until| until > now) => {
                _ = alive.insert(&field[1..])
            }
            _ => {}
        }
    }
    records.retain(|record| match record.state {
        1 => alive.contains(&record.client[..]),
        _ => record.holds() && record.deadline > now,
    });
    records
        .sort_by_key(|record| (!record.holds(), if record.holds() { record.token } else { record.number }));
    if in_parts {
        // Where two cannot hold beside each other, the one with the lesser token has left.
        let last = records.iter().take_while(|record| record.holds()).count();
        let passed = (1..last).rev().find(|at| !records[at - 1].fits(&records[*at]));
        records.drain(..passed.unwrap_or(0));
        let newest = records.iter().filter(|record| record.holds()).map(|record| record.token).max();
        last_token = last_token.max(newest.map(Token::new));
    }
    let claims = records.into_iter().map(|record| record.claim(now)).collect();
    Some(Info::new(name.clone(), last_token, claims))
}

/// Returns who has evicted the claim with this record, and why.
pub(crate) fn evicted_by(record: &[u8]) -> String {
    let text = record.get(70..).unwrap_or_default();
    let by = text.iter().rposition(|byte| *byte == 0).map(|at| &text[at + 1..]);
    String::from_utf8_lossy(by.unwrap_or_default()).into_owned()
}

/// Those whose votes were refused, of which a node of a quorum wrote this down.
pub(crate) fn refused(entries: &[Value], now: u64) -> Vec<ClaimInfo> {
    let read = |entry: &Value| match entry {
        Value::BulkString(entry) => Field::refused(entry).map(|field| field.claim(now)),
        _ => None,
    };
    entries.iter().filter_map(read).collect()
}

/// The last token: in a summary after the form, three counts, the permits and two times. `None`: it has another form.
fn summary(bytes: &[u8]) -> Option<Option<Token>> {
    let mut reader = Reader(bytes);
    (reader.byte()? == 1).then_some(())?;
    reader.bytes(1 + 4 + 4 + 3 * 8)?;
    let last = reader.number()?;
    Some(Some(last).filter(|last| *last > 0).map(Token::new))
}
