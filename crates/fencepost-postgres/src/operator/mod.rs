//! Listing, inspection and eviction: the clients are asked.

pub(crate) mod message;
pub(crate) mod names;
pub(crate) mod reply;

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{
    ClaimInfo, ClaimRecord, Error, ErrorKind, Eviction, Info, Listing, Mode, Name, Page, Result, Token,
};
use fencepost_sql::{Failure, client_name, in_order, page_of};
use serde_json::{Value, json};

use crate::client::PostgresClient;
use crate::conn::connect::CHANNEL;
use crate::conn::session::Backend;
use crate::error::ENGINE;
use crate::inbox::Replies;
use crate::keys::key;
use crate::operator::message::{join, text_of};
use crate::operator::reply::read;

/// How long an operator waits for the replies of clients. A client that is stopped or cut off does not reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(1_000);

/// How long an inspection waits for them. A call inspects the lock within the last second of its waiting time, or within its attempt
/// limit of 1 s.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(600);

/// Asks `clients` and waits for their replies, for at most `limit`.
async fn ask(
    client: &PostgresClient,
    mut question: Value,
    clients: Vec<String>,
    limit: Duration,
) -> Result<Replies, Failure> {
    let mut asked = client.server.inbox.ask();
    question["to"] = client_name(&client.runtime).into();
    question["number"] = asked.number.into();
    question["prefix"] = client.server.prefix().into();
    let (connection, question) = (client.connection().await?, text_of(&question));
    connection.run(|session| session.notify(CHANNEL, &question)).await?;
    let clock = client.runtime.clock();
    clock.within(clock.now() + limit, asked.complete(&clients)).await;
    Ok(asked.replies(clients))
}

async fn backends(client: &PostgresClient, name: &Name) -> Result<Vec<Backend>, Failure> {
    let key = key(client.server.prefix(), name);
    client.connection().await?.run(|session| session.backends(key)).await
}

/// Returns the claims of a name. A client that does not reply is shown by the number of its backend.
pub(crate) async fn inspect(client: &PostgresClient, name: &Name) -> Result<Info> {
    let backends = backends(client, name).await?;
    if backends.is_empty() {
        return Ok(Info::new(name.clone(), None, Vec::new()));
    }
    let question = json!({ "ask": "name", "name": name.as_str() });
    let replies = ask(client, question, clients_of(&backends), INSPECT_TIMEOUT).await?;
    let mut claims = claims(client, &replies.parts).remove(name.as_str()).unwrap_or_default();
    let silent = backends.iter().filter(|one| !one.is_client() || replies.silent.contains(&one.client));
    claims.extend(silent.map(|one| unknown(client, one)));
    Ok(in_order(name.clone(), claims))
}

/// Returns a page of the names that clients hold or wait for.
pub(crate) async fn list(client: &PostgresClient, begins: &str, page: &Page) -> Result<Listing> {
    let clients = client.connection().await?.run(|session| session.clients()).await?;
    let after = page.after.as_ref().map(Name::as_str);
    let question = json!({ "ask": "list", "begins": begins, "after": after, "limit": page.limit });
    let replies = ask(client, question, clients, REPLY_TIMEOUT).await?;
    if !replies.silent.is_empty() {
        let rest = if client.server.names.is_usable() {
            "the table of names tells their locks"
        } else {
            "their locks are not listed; with the table that `fencepost schema --apply` makes they would be"
        };
        tracing::warn!(clients = replies.silent.len(), "some clients do not reply; {rest}");
    }
    let mut found = claims(client, &replies.parts);
    if client.server.names.is_usable() {
        // More than a page: names that replies have told may be among them.
        let after = after.unwrap_or_default();
        let connection = client.connection().await?;
        let named = connection.run(|session| session.named(client.server.prefix(), begins, after)).await?;
        for (name, backend) in named {
            if !backend.is_client() || replies.silent.contains(&backend.client) {
                found.entry(name).or_default().push(unknown(client, &backend));
            }
        }
    }
    // Each client gives `limit` names, so a full page may have a next one.
    let more = found.len() >= page.limit;
    page_of(found, page, more)
}

/// Asks the holder's client to end the grant.
pub(crate) async fn evict(client: &PostgresClient, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let backends = backends(client, name).await?;
    let question = json!({
        "ask": "evict", "name": name.as_str(), "token": token.get(), "now": how.now, "reason": how.reason,
    });
    let replies = ask(client, question, clients_of(&backends), REPLY_TIMEOUT).await?;
    let evicted = |claim: &Value| claim["evicted"] == true;
    if join(&replies.parts).iter().any(evicted) {
        return Ok(());
    }
    let silent =
        backends.iter().find(|one| one.holds && (!one.is_client() || replies.silent.contains(&one.client)));
    let error = match silent {
        Some(Backend { pid, .. }) => Error::new(
            ErrorKind::Unreachable,
            format!(
                "the holder's process does not reply, and is told when it goes on; SELECT pg_terminate_backend({pid}) ends \
                 its connection now, with all locks on it"
            ),
        )
        .unknown(),
        None => Error::no_grant(name.clone(), token),
    };
    Err(error.on(ENGINE))
}

impl Backend {
    /// Returns whether this is a client of fencepost, which replies.
    fn is_client(&self) -> bool {
        self.client.starts_with("fencepost_")
    }
}

fn clients_of(backends: &[Backend]) -> Vec<String> {
    let mut clients: Vec<_> =
        backends.iter().filter(|one| one.is_client()).map(|one| one.client.clone()).collect();
    clients.sort_unstable();
    clients.dedup();
    clients
}

/// Returns the claims in replies by name.
fn claims(client: &PostgresClient, parts: &[Value]) -> BTreeMap<String, Vec<ClaimInfo>> {
    let now = client.runtime.clock().wall_micros();
    let mut names: BTreeMap<String, Vec<ClaimInfo>> = BTreeMap::new();
    for (name, info) in join(parts).iter().filter_map(|claim| read(claim, now)) {
        names.entry(name.to_owned()).or_default().push(info);
    }
    names
}

/// Describes a backend whose client does not reply.
fn unknown(client: &PostgresClient, backend: &Backend) -> ClaimInfo {
    let record = ClaimRecord::foreign(format!("backend {} of {}", backend.pid, backend.session).as_bytes());
    let mode = if backend.shared { Mode::Shared } else { Mode::Exclusive };
    // Its token is not known. Zero says that it holds.
    let token = backend.holds.then(Token::default);
    record.into_info(mode, token, client.runtime.clock().wall_micros(), 0)
}
