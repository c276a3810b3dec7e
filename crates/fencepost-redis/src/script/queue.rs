//! The requests of claims and what they are given.

use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Mode, Token};
use redis::Cmd;

use crate::script::record::Terms;
use crate::script::{LOCKS, Script};

pub(crate) static ENTER: Script = Script::new(&LOCKS, "enter");
pub(crate) static LEAVE: Script = Script::new(&LOCKS, "leave");
pub(crate) static RENEW: Script = Script::new(&LOCKS, "renew");
pub(crate) static CONVERT: Script = Script::new(&LOCKS, "convert");
pub(crate) static TAKE_UP: Script = Script::new(&LOCKS, "take_up");
pub(crate) static EVICT: Script = Script::new(&LOCKS, "evict");
pub(crate) static READ: Script = Script::new(&LOCKS, "read");

/// How long a client is taken for alive after its last word, and how long a grant that it was handed lives unconfirmed.
pub(crate) const LIVE: Duration = Duration::from_millis(1_900);
/// How often a client says that it still waits.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How many locks one call renews at most: the server does nothing else meanwhile, for some 15 µs each.
pub(crate) const BATCH: usize = 250;
/// How many of its oldest claims a client asks after where it waits.
pub(crate) const OLDEST: usize = 16;
/// Stands for nobody where a client is named.
pub(crate) const NOBODY: &[u8; 16] = b"0000000000000000";

/// The parameters that all calls of a client share.
pub(crate) struct Setting {
    /// The prefix of all keys.
    pub(crate) prefix: Box<str>,
    /// The client in the line, 16 hex digits.
    pub(crate) client: String,
    /// The prefix of all clients' channels.
    pub(crate) inbox: String,
    /// How long the last token of an idle lock is kept.
    pub(crate) retention: Duration,
    pub(crate) cluster: bool,
    /// The longest lease, where the server is a node of a quorum.
    pub(crate) max_ttl: Duration,
}

impl Setting {
    /// The key of a lock.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), name.as_bytes()].concat()
    }

    /// The channel of this client.
    pub(crate) fn channel(&self) -> String {
        format!("{}{}", self.inbox, self.client)
    }

    fn cluster(&self) -> &'static str {
        flag(self.cluster)
    }

    pub(crate) fn retention(&self) -> u64 {
        millis(self.retention)
    }

    /// Returns who sends a request, see `SENDER` in lua/lock.lua.
    fn sender(&self, id: ClaimId) -> [u8; 26] {
        let mut sender = [u8::from(self.cluster); 26];
        sender[..8].copy_from_slice(&(self.retention() as f64).to_be_bytes());
        sender[8..24].copy_from_slice(&id.as_u128().to_be_bytes());
        sender[25] = self.prefix.len() as u8;
        sender
    }

    /// Adds the request of a claim, see `REQUEST` in lua/lock.lua.
    pub(crate) fn request(&self, command: &mut Cmd, claim: &Claim, ttl: Duration, joins: bool) {
        let mut head = [u8::from(joins) + 2 * u8::from(claim.is_unfair()); 35];
        head[1..9].copy_from_slice(&(micros(ttl) as f64).to_be_bytes());
        head[9..].copy_from_slice(&self.sender(claim.id));
        self.terms(claim).put(command, &head);
    }

    /// Returns the part of a claim's record that never changes.
    pub(crate) fn terms(&self, claim: &Claim) -> Terms<'_> {
        Terms::of(claim, &self.client)
    }

    /// See `enter` in lua/queue.lua.
    pub(crate) fn enter(&self, key: &[u8], claim: &Claim, ttl: Duration) -> Cmd {
        ENTER.command(&[key], |command| {
            self.request(command, claim, ttl, claim.waits);
        })
    }

    /// See `leave` in lua/queue.lua.
    pub(crate) fn leave(&self, key: &[u8], id: ClaimId, tombstone: bool) -> Cmd {
        LEAVE.command(&[key], |command| self.leaves(command, id, tombstone))
    }

    /// Adds a claim that leaves.
    pub(crate) fn leaves(&self, command: &mut Cmd, id: ClaimId, tombstone: bool) {
        command.arg(&self.sender(id)).arg(flag(tombstone));
    }

    /// Reads a claim's record.
    pub(crate) fn read(key: &[u8], id: ClaimId) -> Cmd {
        let mut field = [b'c'; 17];
        field[1..].copy_from_slice(&id.as_u128().to_be_bytes());
        let mut command = Cmd::with_capacity(3, 96);
        command.arg("HGET").arg(key).arg(&field);
        command
    }

    /// See `renew` in lua/queue.lua.
    pub(crate) fn renew(&self, locks: &[LockToRenew]) -> Cmd {
        self.renew_for(self.client.as_bytes(), locks)
    }

    /// Goes on where a call for this lock had more to do. There is more to do as long as the reply's number is 0.
    pub(crate) fn go_on(&self, key: &[u8]) -> Cmd {
        self.renew_for(NOBODY, &[LockToRenew { key: key.to_vec(), waits: true, claims: Vec::new() }])
    }

    fn renew_for(&self, client: &[u8], locks: &[LockToRenew]) -> Cmd {
        let keys: Vec<&[u8]> = locks.iter().map(|lock| &*lock.key).collect();
        RENEW.command(&keys, |command| {
            command.arg(client).arg(self.retention()).arg(&self.inbox).arg(self.cluster());
            for lock in locks {
                command.arg(flag(lock.waits)).arg(lock.claims.len());
                for (id, ttl) in &lock.claims {
                    command.arg(&id.as_u128().to_be_bytes()).arg(micros(*ttl));
                }
            }
        })
    }

    /// See `convert` in lua/queue.lua.
    pub(crate) fn convert(&self, key: &[u8], id: ClaimId, number: u32, to: ConvertTo) -> Cmd {
        CONVERT.command(&[key], |command| {
            command.arg(&self.sender(id)).arg(number);
            match to {
                ConvertTo::Exclusive { mark } => command.arg("1").arg(flag(mark)),
                ConvertTo::Shared { token } => command.arg("0").arg(token.get()),
            };
        })
    }

    /// See `take_up` in lua/queue.lua.
    pub(crate) fn take_up(&self, key: &[u8], id: ClaimId, mode: Mode, ttl: Duration, owner: NewOwner) -> Cmd {
        TAKE_UP.command(&[key], |command| {
            command.arg(&id.as_u128().to_be_bytes());
            command.arg(match owner {
                NewOwner::Client => self.client.as_bytes(),
                NewOwner::Nobody => NOBODY,
                NewOwner::Unchanged => b"",
            });
            let (mode, n, of) = mode_numbers(mode);
            command.arg(micros(ttl)).arg(self.retention()).arg(mode).arg(n).arg(of);
        })
    }

    /// See `evict` in lua/queue.lua.
    pub(crate) fn evict(&self, key: &[u8], token: Token, now: bool, by: &str, cursor: u64) -> Cmd {
        EVICT.command(&[key], |command| {
            command.arg(token.get()).arg(flag(now)).arg(&self.inbox).arg(self.cluster()).arg(by).arg(cursor);
        })
    }
}

/// To whom a grant belongs after `take_up`. The messages about it are sent to that client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewOwner {
    /// The client that asks.
    Client,
    Nobody,
    Unchanged,
}

/// How a claim is to hold a lock from now on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConvertTo {
    /// `mark`: leaves a mark if others hold the lock, too.
    Exclusive { mark: bool },
    /// With the token that its holder knows.
    Shared { token: Token },
}

/// A lock of which a round renews some claims, and the client's positions in its queue.
pub(crate) struct LockToRenew {
    pub(crate) key: Vec<u8>,
    /// Does the client wait there?
    pub(crate) waits: bool,
    pub(crate) claims: Vec<(ClaimId, Duration)>,
}

/// As scripts take it.
pub(crate) fn flag(is: bool) -> &'static str {
    if is { "1" } else { "0" }
}

/// Whole microseconds, at least one.
pub(crate) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX).max(1)
}

pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A mode as records have it: its number, permits, and out of how many.
fn mode_numbers(mode: Mode) -> (u8, u32, u32) {
    match mode {
        Mode::Exclusive => (1, 0, 0),
        Mode::Shared => (2, 0, 0),
        Mode::Permits { n, of } => (3, n, of),
    }
}

pub(crate) fn mode_bytes(mode: Mode) -> [u8; 9] {
    let (number, n, of) = mode_numbers(mode);
    let mut bytes = [number; 9];
    bytes[1..5].copy_from_slice(&n.to_be_bytes());
    bytes[5..].copy_from_slice(&of.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests;
