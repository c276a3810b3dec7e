//! The runs of a lock, for claims that ask the server to keep them. They cost one command after the grant and one after the release.
//!
//! Their key is apart from the lock's, which goes when the lock was idle for a while. It is no name of a lock: it has a control
//! character. Each client of a version that does not know such keys passes them over.

use std::sync::Arc;

use fencepost_core::{Claim, Mode, Name, Removed, Result, Runs, Token};
use redis::{Cmd, Value};

use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::script::Script;
use crate::script::answer::nonsense;

static HISTORY: Script = Script::new(include_str!("lua/history.lua"));

/// The part of the key between the prefix and the lock's name.
const APART: &[u8] = b"\x01runs:";

/// A run that the server has noted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptRun {
    pub(crate) token: Token,
    /// On the server's clock, microseconds since 1970.
    pub(crate) since: u64,
}

impl KeptRun {
    /// Notes that the claim was granted. Repeated, it changes nothing.
    pub(crate) async fn begin(client: &Arc<RedisClient>, claim: &Claim, token: Token) -> Result<KeptRun> {
        let value = ask(client, &claim.want().name, |command| {
            step(command, b"begin", claim, token).arg(others(claim));
        });
        let value = value.await?;
        let (_, list) = read(&value)?;
        let since = match list {
            [Value::BulkString(text)] => str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        Ok(KeptRun { token, since: since.ok_or_else(|| nonsense(&value))? })
    }

    /// Notes that its grant has another token since an upgrade. Repeated, it changes nothing.
    pub(crate) async fn turn(
        self,
        client: &Arc<RedisClient>,
        claim: &Claim,
        token: Token,
    ) -> Result<KeptRun> {
        ask(client, &claim.want().name, |command| {
            _ = command.arg("turn").arg(self.token.get()).arg(head(claim, token)).arg(keep(claim));
            command.arg(token.get());
        })
        .await?;
        Ok(KeptRun { token, ..self })
    }

    /// Notes its end, after `removed` was the answer to the release. Repeated, it changes nothing.
    pub(crate) async fn end(self, client: &Arc<RedisClient>, claim: &Claim, removed: Removed) -> Result<()> {
        let outcome = claim.outcome();
        let held = removed == Removed::Released;
        let lost = outcome.lost || !held;
        let code = outcome.exit_code.map(|code| format!(",\"exit_code\":{code}")).unwrap_or_default();
        let rest = if lost { code + ",\"lost\":true" } else { code };
        let good = outcome.exit_code == Some(0) && !lost;
        let since = if held { self.since.to_string() } else { String::new() };
        ask(client, &claim.want().name, |command| {
            step(command, b"end", claim, self.token)
                .arg(rest)
                .arg(u8::from(good))
                .arg(since)
                .arg(others(claim));
        })
        .await
        .map(drop)
    }

    /// Forgets it: nobody has learned of the grant.
    pub(crate) async fn cancel(self, client: &Arc<RedisClient>, claim: &Claim) -> Result<()> {
        let name = &claim.want().name;
        ask(client, name, |command| _ = step(command, b"cancel", claim, self.token)).await.map(drop)
    }
}

/// Returns the runs of a lock, and the server's time.
pub(crate) async fn look(client: &Arc<RedisClient>, name: &Name) -> Result<(Option<Runs>, u64)> {
    let value = ask(client, name, |command| _ = command.arg("look")).await?;
    let (now, list) = read(&value)?;
    let mut text = Vec::new();
    for (key, run) in ["running", "last", "good"].iter().zip(list) {
        match run {
            Value::BulkString(run) if run.is_empty() => {}
            Value::BulkString(run) => {
                let run = String::from_utf8_lossy(run);
                text.push(format!("\"{key}\":{run}}}"));
            }
            _ => return Err(nonsense(&value)),
        }
    }
    let runs = (!text.is_empty()).then(|| Runs::read(&format!("{{{}}}", text.join(","))));
    Ok((runs, now))
}

/// The server's time, and the rest of the reply.
fn read(value: &Value) -> Result<(u64, &[Value])> {
    match value {
        Value::Array(items) => match &**items {
            [Value::Int(now), list @ ..] => Ok((u64::try_from(*now).unwrap_or_default(), list)),
            _ => Err(nonsense(value)),
        },
        _ => Err(nonsense(value)),
    }
}

/// Adds what a step needs of the claim: see lua/history.lua.
fn step<'a>(command: &'a mut Cmd, step: &[u8], claim: &Claim, token: Token) -> &'a mut Cmd {
    command.arg(step).arg(token.get()).arg(head(claim, token)).arg(keep(claim))
}

/// The beginning of a run's text. The server adds when it began and ended.
fn head(claim: &Claim, token: Token) -> String {
    let mut head = claim.run(token, 0).to_text();
    head.pop();
    head
}

/// How long the server keeps the runs, in ms. Lua's numbers are exact up to 2^53, and the server deletes a key whose expiry is none of its
/// own numbers.
fn keep(claim: &Claim) -> u64 {
    const LONGEST: u64 = 1 << 52;
    let keep = claim.history.unwrap_or_default().as_millis().max(1);
    u64::try_from(keep).unwrap_or(LONGEST).min(LONGEST)
}

/// Whether others may hold the lock, too.
fn others(claim: &Claim) -> u8 {
    u8::from(claim.want().mode != Mode::Exclusive)
}

async fn ask(client: &Arc<RedisClient>, name: &Name, args: impl FnOnce(&mut Cmd)) -> Result<Value> {
    let key = [client.setting.prefix.as_bytes(), APART, name.as_str().as_bytes()].concat();
    let slot = client.deployment.slot(&key);
    let call = Call::new(&HISTORY, slot, HISTORY.command(&[key], args));
    client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)
}
