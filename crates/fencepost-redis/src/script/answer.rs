//! Reads the replies of the scripts.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Removed, Token};
use redis::Value;

use crate::error::ENGINE;
use crate::script::queue::Kept;

/// The reply of enter.lua.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entered {
    Holds(Token),
    /// No grant up to token `last` is this claim's any more.
    Waits {
        ahead: u32,
        again: Option<Duration>,
        number: u64,
        last: Token,
    },
    Busy {
        ahead: u32,
        /// When the first lease here ends, for a vote that was refused.
        again: Option<Duration>,
    },
    Gone,
    /// A node of a quorum that may have lost data.
    Out(Duration),
}

impl Entered {
    pub(crate) fn read(value: &Value) -> Result<Entered, Error> {
        match value {
            Value::Int(token) => return Ok(Entered::Holds(Token::new(token.unsigned_abs()))),
            Value::BulkString(waits) => return Entered::waits(waits).ok_or_else(|| nonsense(value)),
            _ => {}
        }
        Ok(match *ints(value)? {
            [3, ahead] => Entered::Busy { ahead: count(ahead), again: None },
            [3, ahead, again] => Entered::Busy { ahead: count(ahead), again: pause(again) },
            [4] => Entered::Gone,
            [9, ms] => Entered::Out(pause(ms).unwrap_or_default()),
            _ => return Err(nonsense(value)),
        })
    }

    /// Four doubles, big-endian.
    fn waits(answer: &[u8]) -> Option<Entered> {
        let (numbers, []) = answer.as_chunks::<8>() else { return None };
        let &[ahead, again, number, last] = numbers else { return None };
        let [ahead, again, number, last] = [ahead, again, number, last].map(f64::from_be_bytes);
        Some(Entered::Waits {
            ahead: count(ahead as i64),
            again: pause(again as i64),
            number: number as u64,
            last: Token::new(last as u64),
        })
    }
}

/// The reply of leave.lua.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Departed {
    /// The removed grant or place; `None`: nothing was there.
    pub(crate) what: Option<Removed>,
    /// By the server's clock that grant's lease may have ended before, though nobody has asked since.
    pub(crate) untimed: bool,
    /// The line is long: more is to be done.
    pub(crate) more: bool,
    /// The lock has no room for another tombstone: the withdrawal is to be sent again.
    pub(crate) full: bool,
}

impl Departed {
    pub(crate) fn read(value: &Value) -> Result<Departed, Error> {
        let Value::Int(flags @ 0..=15) = value else { return Err(nonsense(value)) };
        let what = match flags & 3 {
            1 | 3 => Some(Removed::Released),
            2 => Some(Removed::Withdrawn),
            _ => None,
        };
        Ok(Departed { what, untimed: flags & 3 == 3, more: flags & 4 != 0, full: flags & 8 != 0 })
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

/// The reply of keep.lua for one lock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Renewed {
    pub(crate) again: Option<Duration>,
    pub(crate) claims: Vec<Standing>,
}

impl Renewed {
    /// One for each of `locks`.
    pub(crate) fn read(value: &Value, locks: &[Kept]) -> Result<Vec<Renewed>, Error> {
        let all = ints(value)?;
        let mut rest = &all[..];
        let mut read = Vec::with_capacity(locks.len());
        for lock in locks {
            let Some((again, after)) = rest.split_first() else { return Err(nonsense(value)) };
            let Some((claims, after)) = after.split_at_checked(2 * lock.claims.len()) else {
                return Err(nonsense(value));
            };
            let claims = claims.chunks_exact(2).map(|pair| match pair[0] {
                1 => Standing::Holds(Token::new(pair[1] as u64)),
                2 => Standing::Waits(Token::new(pair[1] as u64)),
                5 => Standing::Evicted,
                _ => Standing::Gone,
            });
            read.push(Renewed { again: pause(*again), claims: claims.collect() });
            rest = after;
        }
        Ok(read)
    }
}

/// A list of integers.
pub(crate) fn ints(value: &Value) -> Result<Vec<i64>, Error> {
    let Value::Array(items) = value else { return Err(nonsense(value)) };
    items
        .iter()
        .map(|item| if let Value::Int(int) = item { Ok(*int) } else { Err(nonsense(value)) })
        .collect()
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

fn pause(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
