//! The stored limit of a lock's permits.
//!
//! It is in a hash of its own, because the lock's key goes when the lock was idle for a while. lua/limit.lua reads it beside the lock, so
//! both keys have one slot. A cluster still has no limits: while a slot moves away, its keys are in two places. The key is no name of a lock: it has a control character. It begins with the prefix of all
//! keys, and the commands are those of the locks, so it needs no other permissions.

use std::sync::Arc;

use fencepost_core::{Error, Name, Result};
use redis::{Cmd, Value};

use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::nonsense;

const FIELD: &str = "limit";

/// Returns the key of the limit of the lock at `key`. `None`: the braces in the name choose the slot, and no other key is known to be in
/// it.
fn key_of(prefix: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    let at = |brace: u8, from: usize| key[from..].iter().position(|byte| *byte == brace).map(|at| from + at);
    match (at(b'{', 0), at(b'}', 0)) {
        (None, None) => Some([prefix, b"\x01permits:{", key, b"}"].concat()),
        // The same braces choose the slot of both keys.
        (Some(open), _) if at(b'}', open).is_some_and(|close| close > open + 1) => {
            Some([key, b"\x01permits"].concat())
        }
        _ => None,
    }
}

/// Returns the limit.
pub(crate) async fn look(client: &Arc<RedisClient>, name: &Name) -> Result<Option<u32>> {
    let (key, slot) = client.key(name);
    let Some(kept) = key_of(client.setting.prefix.as_bytes(), &key) else { return Ok(None) };
    let mut command = Cmd::new();
    command.arg("HGET").arg(kept).arg(FIELD);
    let value = ask(client, slot, command).await?;
    let number = match &value {
        Value::Nil => return Ok(None),
        Value::BulkString(text) => str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        _ => None,
    };
    number.map(Some).ok_or_else(|| nonsense(&value))
}

/// Stores the limit, or forgets it, and hands the lock on.
pub(crate) async fn set(client: &Arc<RedisClient>, name: &Name, limit: Option<u32>) -> Result<()> {
    let (key, slot) = client.key(name);
    let Some(kept) = key_of(client.setting.prefix.as_bytes(), &key) else {
        let rule = "a name with braces has a stored limit only if they enclose a part of it: rename the lock";
        return Err(Error::invalid(rule).on(ENGINE));
    };
    let mut command = Cmd::new();
    match limit {
        Some(limit) => _ = command.arg("HSET").arg(kept).arg(FIELD).arg(limit),
        None => _ = command.arg("HDEL").arg(kept).arg(FIELD),
    }
    // Dropped here, the limit is changed or not.
    ask(client, slot, command).await?;
    // Dropped here, the lock is handed on by the next request of a waiter, within a second.
    client.go_on(Lane::Caller, &key, slot).await;
    Ok(())
}

async fn ask(client: &Arc<RedisClient>, slot: u16, command: Cmd) -> Result<Value> {
    client.deployment.call(Lane::Caller, &Call::plain(slot, command)).await.map_err(CallError::into_error)
}

#[cfg(test)]
mod tests {
    use super::key_of;
    use crate::deployment::slots::slot;

    #[test]
    fn the_limit_is_in_the_slot_of_its_lock() {
        let mut none = Vec::new();
        for name in ["gpu", "gpu{a}x", "{a}", "a{b}{c}", "a}b{c}", "a{b", "a}b", "{}a", "{}a{b}", "a}"] {
            for prefix in ["fencepost:", "app{x}:", ""] {
                let key = [prefix, name].concat();
                match key_of(prefix.as_bytes(), key.as_bytes()) {
                    Some(kept) => {
                        assert_eq!(slot(&kept), slot(key.as_bytes()), "{key}");
                        assert!(kept.starts_with(prefix.as_bytes()), "{key}");
                    }
                    None => none.push(key),
                }
            }
        }
        let none_of = |name: &str| ["fencepost:", ""].map(|prefix| [prefix, name].concat());
        assert_eq!(none, ["a{b", "a}b", "{}a", "{}a{b}", "a}"].map(none_of).concat());
    }
}
