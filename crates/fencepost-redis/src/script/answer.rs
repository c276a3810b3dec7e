//! Reads the replies of the scripts.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Removed, Token};
use redis::Value;

use crate::error::ENGINE;
use crate::script::queue::LockToRenew;

/// The reply of a script: a status of four letters, then numbers as doubles.
pub(crate) struct ScriptReply<'a> {
    pub(crate) status: &'a [u8; 4],
    pub(crate) numbers: Vec<i64>,
    value: &'a Value,
}

impl<'a> ScriptReply<'a> {
    pub(crate) fn read(value: &'a Value) -> Result<ScriptReply<'a>, Error> {
        let read = || {
            let Value::BulkString(bytes) = value else { return None };
            let (status, numbers) = bytes.split_first_chunk()?;
            let (numbers, []) = numbers.as_chunks() else { return None };
            let numbers = numbers.iter().map(|number| f64::from_be_bytes(*number) as i64).collect();
            Some(ScriptReply { status, numbers, value })
        };
        read().ok_or_else(|| nonsense(value))
    }

    /// Returns the error for a reply that a script never gives.
    pub(crate) fn nonsense(&self) -> Error {
        nonsense(self.value)
    }
}

/// The reply of a script that lists something: the time in µs, and what it lists.
pub(crate) fn list(value: &Value) -> Result<(u64, &[Value]), Error> {
    match value {
        Value::Array(items) => match &**items {
            [Value::BulkString(status), Value::Int(now), list @ ..] if status == b"LIST" => {
                Ok((u64::try_from(*now).unwrap_or_default(), list))
            }
            _ => Err(nonsense(value)),
        },
        _ => Err(nonsense(value)),
    }
}

/// The reply of `enter` and of `vote`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entered {
    Holds {
        token: Token,
    },
    /// No grant up to token `last` is this claim's any more.
    Waits {
        next_look: Option<Duration>,
        number: u64,
        last: Token,
    },
    Busy {
        /// When another look is worth it; at once if a call has left work.
        next_look: Option<Duration>,
    },
    Gone,
    /// A node of a quorum that may have lost data.
    Away(Duration),
}

impl Entered {
    pub(crate) fn read(value: &Value) -> Result<Entered, Error> {
        let reply = ScriptReply::read(value)?;
        Ok(match (reply.status, &*reply.numbers) {
            (b"HELD", [token]) => Entered::Holds { token: Token::new(*token as u64) },
            (b"WAIT", [next_look, number, last]) => Entered::Waits {
                next_look: pause(*next_look),
                number: *number as u64,
                last: Token::new(*last as u64),
            },
            (b"BUSY", [next_look]) => Entered::Busy { next_look: pause(*next_look) },
            (b"GONE", []) => Entered::Gone,
            (b"DENY", [limit]) => return Err(Error::over_limit(count(*limit)).on(ENGINE)),
            (b"AWAY", [ms]) => Entered::Away(pause(*ms).unwrap_or_default()),
            _ => return Err(reply.nonsense()),
        })
    }
}

/// Returns the error of a node of a quorum that may have lost data.
pub(crate) fn stays_out(left: Duration) -> Error {
    let message = format!(
        "this node restarted, lost data or is new, and stays out for {} s: wait so long, \
         or say with `fencepost doctor --init` (redlock::vouch) that nothing was lost",
        left.as_secs() + 1
    );
    Error::new(ErrorKind::Unreachable, message).on(ENGINE)
}

/// The reply of `convert`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Converted {
    Exclusive(Token),
    /// Others hold the lock, too. `next_look`: when another look is worth it.
    Beside {
        next_look: Option<Duration>,
    },
    /// Another holder is marked.
    Conflict,
    /// `more`: the line is long, and more is to be done.
    Shared {
        more: bool,
    },
    Gone,
}

impl Converted {
    pub(crate) fn read(value: &Value) -> Result<Converted, Error> {
        let reply = ScriptReply::read(value)?;
        Ok(match (reply.status, &*reply.numbers) {
            (b"HELD", [token]) => Converted::Exclusive(Token::new(*token as u64)),
            (b"WAIT" | b"BUSY", [next_look]) => Converted::Beside { next_look: pause(*next_look) },
            (b"ELSE", []) => Converted::Conflict,
            (b"DONE", [more]) => Converted::Shared { more: *more == 1 },
            (b"GONE", []) => Converted::Gone,
            _ => return Err(reply.nonsense()),
        })
    }
}

/// The reply of `leave`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departed {
    /// What was removed: a grant, or a position in the queue. `None`: nothing was there.
    pub(crate) what: Option<Removed>,
    /// The line is long: more is to be done.
    pub(crate) more: bool,
    /// The lock has no room for another tombstone: the withdrawal is to be sent again.
    pub(crate) full: bool,
}

impl Departed {
    pub(crate) fn read(value: &Value) -> Result<Departed, Error> {
        let reply = ScriptReply::read(value)?;
        let what = match reply.status {
            b"FREE" => Some(Removed::Released),
            b"LEFT" => Some(Removed::Withdrawn),
            b"NONE" => None,
            _ => return Err(reply.nonsense()),
        };
        let [more, full] = *reply.numbers else { return Err(reply.nonsense()) };
        Ok(Departed { what, more: more == 1, full: full == 1 })
    }
}

/// How a claim in a round of renewal stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Holds(Token),
    /// No grant up to this token is the claim's any more.
    Waits(Token),
    Gone,
    Evicted,
}

/// The reply of `renew` for one lock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Renewed {
    pub(crate) next_look: Option<Duration>,
    pub(crate) claims: Vec<Standing>,
}

impl Renewed {
    /// One for each of `locks`.
    pub(crate) fn read(value: &Value, locks: &[LockToRenew]) -> Result<Vec<Renewed>, Error> {
        let reply = ScriptReply::read(value)?;
        let mut rest = &reply.numbers[..];
        let mut read = Vec::with_capacity(locks.len());
        for lock in locks {
            let Some((next_look, after)) = rest.split_first() else { return Err(reply.nonsense()) };
            let Some((claims, after)) = after.split_at_checked(2 * lock.claims.len()) else {
                return Err(reply.nonsense());
            };
            // The states of lua/constants.lua.
            let claims = claims.chunks_exact(2).map(|pair| match pair[0] {
                1 => Standing::Waits(Token::new(pair[1] as u64)),
                3 => Standing::Holds(Token::new(pair[1] as u64)),
                4 => Standing::Evicted,
                _ => Standing::Gone,
            });
            read.push(Renewed { next_look: pause(*next_look), claims: claims.collect() });
            rest = after;
        }
        Ok(read)
    }
}

/// A script answered something it never answers.
pub(crate) fn nonsense(value: &Value) -> Error {
    let kind = match value {
        Value::Array(_) => "a list",
        Value::Int(_) => "a number",
        Value::Nil => "nothing",
        _ => "something else",
    };
    Error::new(
        ErrorKind::Internal,
        format!("a script of the lock answered {kind} that it never answers; is this a Redis server?"),
    )
    .on(ENGINE)
}

pub(crate) fn pause(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
