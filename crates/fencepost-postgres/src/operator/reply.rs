//! Replies to the questions of operators: a client tells its claims, because the server knows only keys and backends. The messages are
//! JSON, sent with `NOTIFY`.

use std::sync::{Arc, Weak};

use fencepost_core::{ClaimInfo, ClaimRecord, Mode, Token};
use fencepost_sql::connection_locks::ListedClaim;
use fencepost_sql::{Failure, client_name};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::client::{PostgresClient, PostgresServer};
use crate::conn::connect::{CHANNEL, Message};
use crate::operator::message::{divide, text_of};

/// Handles messages until the client is dropped.
pub(crate) async fn run(client: Weak<PostgresClient>, mut messages: UnboundedReceiver<Message>) {
    while let Some(message) = messages.recv().await {
        let Some(client) = client.upgrade() else { return };
        let Ok(text) = serde_json::from_str::<Value>(&message.text) else { continue };
        if message.channel == CHANNEL {
            let runtime = client.runtime.clone();
            runtime.spawn(async move {
                if let Err(failure) = reply(&client, &text).await {
                    tracing::debug!(?failure, "a question of an operator has no reply");
                }
            });
        } else {
            client.server.inbox.take(text);
        }
    }
}

async fn reply(client: &Arc<PostgresClient>, question: &Value) -> Result<(), Failure> {
    let (Some(to), Some(number)) = (question["to"].as_str(), question["number"].as_u64()) else {
        return Ok(());
    };
    // The channel becomes part of no statement: it is a value. Others than ours are not used.
    if !to.starts_with("fencepost_") {
        return Ok(());
    }
    let claims = if question["prefix"] == *client.server.prefix() {
        answer(client, question).await
    } else {
        Vec::new()
    };
    let parts = divide(claims);
    let last = parts.len() - 1;
    let connection = client.connection().await?;
    let from = client_name(&client.runtime);
    for (number_of_part, mut part) in parts.into_iter().enumerate() {
        (part["number"], part["client"]) = (number.into(), from.as_str().into());
        (part["part"], part["last"]) = (number_of_part.into(), (number_of_part == last).into());
        let text = text_of(&part);
        connection.run(|session| session.notify(to, &text)).await?;
    }
    Ok(())
}

async fn answer(client: &Arc<PostgresClient>, question: &Value) -> Vec<Value> {
    let text = |key: &str| question[key].as_str();
    match text("ask") {
        Some("name") => {
            let name = text("name").unwrap_or_default();
            client.listed.select(|known| known == name).iter().map(shown).collect()
        }
        Some("list") => {
            let (begins, after) = (text("begins").unwrap_or_default(), text("after"));
            let limit = question["limit"].as_u64().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(1);
            let found = client
                .listed
                .select(|known| known.starts_with(begins) && after.is_none_or(|after| known > after));
            let mut names: Vec<_> = found.iter().map(|one| one.claim.want().name.clone()).collect();
            names.dedup();
            let end = names.get(limit);
            found.iter().filter(|one| end.is_none_or(|end| one.claim.want().name < *end)).map(shown).collect()
        }
        Some("evict") => {
            let (name, token) = (text("name").unwrap_or_default(), question["token"].as_u64());
            match token.and_then(|token| client.listed.granted(name, Token::new(token))) {
                Some(one) => evict(&one, question["now"] == true, text("reason")).await.into_iter().collect(),
                None => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// Describes a claim without its id.
fn shown(one: &ListedClaim<PostgresServer>) -> Value {
    let record = String::from_utf8(one.record.to_bytes()).expect("JSON is UTF-8");
    json!({ "name": one.claim.want().name.as_str(), "token": one.token.map(Token::get), "record": record, "entered": one.claim.entered() })
}

/// Ends a grant. `now`: releases its lock at once, else when its lease has expired.
async fn evict(one: &ListedClaim<PostgresServer>, now: bool, reason: Option<&str>) -> Option<Value> {
    let (held, why) = (one.held()?, reason.unwrap_or_default());
    // The holder is told in any case. A release that the server does not confirm is repeated when the lease has expired.
    if !now || held.evict_now(why).await.is_err() {
        held.evict(why);
    }
    Some(json!({ "evicted": true }))
}

/// Reads a claim that [`shown`] wrote: its name, its token and its record.
pub(crate) fn read(claim: &Value, now: u64) -> Option<(&str, ClaimInfo)> {
    let record = ClaimRecord::shown(claim["record"].as_str()?.as_bytes());
    let mode = record.mode.unwrap_or(Mode::Exclusive);
    let mut info = record.into_info(mode, claim["token"].as_u64().map(Token::new), now, 0);
    info.entered = claim["entered"].as_u64().and_then(|count| u32::try_from(count).ok());
    Some((claim["name"].as_str()?, info))
}
