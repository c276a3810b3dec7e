//! The stored limit of a lock's permits.
//!
//! It is in a hash of its own, because the lock's key goes when the lock was idle for a while. `limit` in lua/queue.lua reads it beside the lock. A
//! cluster has no limits: the two keys may be in different slots. The key is no name of a lock: it has a control character. It begins
//! with the prefix of all keys, and the commands are those of the locks, so it needs no other permissions.

use std::sync::Arc;

use fencepost_core::{Name, Result};
use redis::{Cmd, Value};

use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::script::answer::nonsense;

const FIELD: &str = "limit";

/// Returns the key of the limit of the lock at `key`.
fn key_of(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    [prefix, b"\x01permits:", key].concat()
}

/// Returns the limit.
pub(crate) async fn look(client: &Arc<RedisClient>, name: &Name) -> Result<Option<u32>> {
    let (key, slot) = client.key(name);
    let kept = key_of(client.setting.prefix.as_bytes(), &key);
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
    let kept = key_of(client.setting.prefix.as_bytes(), &key);
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
