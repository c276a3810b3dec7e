//! Lists, inspects and evicts locks for operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost_core::{Error, Eviction, Info, Listing, Name, Page, Result, Token};
use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::{ENGINE, foreign, unreadable};
use crate::script::answer::{self, ScriptReply, nonsense};
use crate::script::queue::{EVICT, READ};
use crate::script::record;

/// How many locks one call reads.
const BATCH: usize = 100;

/// One resource.
pub(crate) async fn inspect(client: &Arc<RedisClient>, name: &Name) -> Result<Info> {
    let mut infos = look(client, std::slice::from_ref(name)).await?;
    infos.pop().unwrap_or_else(|| Ok(Info::new(name.clone(), None, Vec::new())))
}

/// A page of the resources that somebody holds or waits for.
pub(crate) async fn list(client: &Arc<RedisClient>, prefix: &str, page: &Page) -> Result<Listing> {
    let mut names = names(client, prefix).await?;
    names.retain(|name| page.begins_before(name));
    names.sort_unstable();
    names.dedup();
    let mut listing = Listing::default();
    // Idle locks have a key too, so the page is filled batch by batch.
    for batch in names.chunks(BATCH) {
        // A foreign key under the prefix is skipped; the locks beside it are still listed.
        let mut infos: Vec<Info> = look(client, batch).await?.into_iter().filter_map(Result::ok).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        if !infos.into_iter().all(|info| listing.add(info, page)) {
            return Ok(listing);
        }
    }
    Ok(listing)
}

/// Evicts the holder whose grant has this token.
pub(crate) async fn evict(
    client: &Arc<RedisClient>,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<()> {
    let (key, slot) = client.key(name);
    let by = how.reason.as_deref().unwrap_or_default();
    let mut cursor = 0;
    loop {
        let call = Call::new(&EVICT, slot, client.setting.evict(&key, token, how.now, by, cursor));
        // Dropped here, the holder is evicted or not.
        let value = client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
        let reply = ScriptReply::read(&value)?;
        match (reply.status, &*reply.numbers) {
            (b"DONE", []) => return Ok(()),
            (b"NONE", []) => return Err(Error::no_grant(name.clone(), token).on(ENGINE)),
            (b"MORE", [next]) => cursor = *next as u64,
            _ => return Err(reply.nonsense()),
        }
    }
}

/// The names of all keys with this prefix, idle ones too, in no order and some perhaps twice.
async fn names(client: &Arc<RedisClient>, prefix: &str) -> Result<Vec<Name>> {
    let key = client.setting.key(prefix);
    let pattern = [&*escaped(&key), b"*"].concat();
    let own = client.setting.prefix.len();
    let masters = client.deployment.masters();
    let each = masters.iter().map(|master| async {
        let mut names = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = Cmd::new();
            scan.arg("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1_000);
            let value = master.command(&scan).await.map_err(CallError::into_error)?;
            let Value::Array(parts) = &value else { return Err(nonsense(&value)) };
            let [Value::BulkString(next), Value::Array(keys)] = &**parts else {
                return Err(nonsense(&value));
            };
            for key in keys {
                // Keys that are no names are not ours.
                if let Value::BulkString(key) = key
                    && let Some(name) = key.get(own..).and_then(|name| std::str::from_utf8(name).ok())
                    && let Ok(name) = Name::new(name)
                {
                    names.push(name);
                }
            }
            if next == b"0" {
                return Ok(names);
            }
            cursor.clone_from(next);
        }
    });
    let answers = join_all(each).await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(answers.into_iter().flatten().collect())
}

/// Reads these locks slot by slot, in calls that do not keep the server long. An error within is that of one key, which is no lock.
async fn look(client: &Arc<RedisClient>, names: &[Name]) -> Result<Vec<Result<Info>>> {
    let mut keyed: Vec<(u16, Vec<u8>, &Name)> = names
        .iter()
        .map(|name| {
            let (key, slot) = client.key(name);
            (slot, key, name)
        })
        .collect();
    keyed.sort_by_key(|(slot, ..)| *slot);
    let each = keyed.chunk_by(|a, b| a.0 == b.0).map(|keyed| async move {
        let mut infos = Vec::with_capacity(keyed.len());
        // How far the first of the others is read: a field may come twice, and the last one counts.
        let (mut cursor, mut fields) = (b"0".to_vec(), BTreeMap::new());
        while let Some(rest @ [(slot, ..), ..]) = keyed.get(infos.len()..) {
            let keys: Vec<&[u8]> = rest.iter().map(|(_, key, _)| &**key).collect();
            let command = READ.command(&keys, |command| {
                command.arg(&cursor);
                keys[1..].iter().for_each(|_| _ = command.arg("0"));
            });
            let value = client.deployment.call(Lane::Caller, &Call::new(&READ, *slot, command)).await;
            let value = value.map_err(CallError::into_error)?;
            let (now, scans) = answer::list(&value)?;
            if scans.is_empty() {
                return Err(nonsense(&value));
            }
            for ((.., name), scan) in rest.iter().zip(scans) {
                let parts = match scan {
                    Value::ServerError(error) => {
                        infos.push(Err(foreign(error)));
                        (cursor, fields) = (b"0".to_vec(), BTreeMap::new());
                        continue;
                    }
                    Value::Array(parts) => &**parts,
                    _ => &[],
                };
                let [Value::BulkString(next), Value::Array(more)] = parts else {
                    return Err(nonsense(&value));
                };
                let in_parts = cursor != b"0" || next != b"0";
                fields.extend(more.chunks_exact(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))));
                cursor.clone_from(next);
                if next == b"0" {
                    let fields: Vec<_> = std::mem::take(&mut fields).into_iter().collect();
                    let info = record::info(name, &fields, now, in_parts);
                    infos.push(info.ok_or_else(unreadable));
                }
            }
        }
        Ok(infos)
    });
    let answers: Vec<Result<Vec<_>>> = join_all(each).await;
    Ok(answers.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn bytes(value: &Value) -> Vec<u8> {
    if let Value::BulkString(bytes) = value { bytes.clone() } else { Vec::new() }
}

/// A key as a pattern that matches itself.
fn escaped(key: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(key.len());
    for byte in key {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}
