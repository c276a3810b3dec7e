//! Listing, inspection and eviction. The table of tokens keeps holders; the server's list of processes shows waiters.

pub(crate) mod cleaner;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fencepost_core::{
    ClaimInfo, ClaimRecord, Error, Eviction, Info, Listing, Mode, Name, Page, Result, Token,
};
use fencepost_sql::connection_locks::Server;
use fencepost_sql::{Failure, in_order, page_of};
use mysql_common::row::Row;
use mysql_common::value::Value;

use crate::client::{MysqlClient, held};
use crate::conn::session::text;
use crate::error::ENGINE;
use crate::schema::tokens::{ALSO, EVICT, HOLDERS, LIST, WAIT_BEGINS, WAITERS, read_wait, wait_begins};

/// A row of [`HOLDERS`] or [`LIST`].
struct Held {
    name: String,
    /// The session that holds the lock.
    used: Option<u64>,
    session: u64,
    token: Token,
    holder: Vec<u8>,
    evicted: bool,
}

impl Held {
    fn read(mut row: Row) -> Option<Held> {
        Some(Held {
            name: row.take(0)?,
            used: row.take_opt::<u64, _>(1)?.ok(),
            session: row.take(2)?,
            token: Token::new(row.take(3)?),
            holder: row.take(4)?,
            evicted: row.take::<u64, _>(5)? > 0,
        })
    }

    /// Returns whether the session of the row holds the lock.
    fn is_current(&self) -> bool {
        self.used == Some(self.session)
    }

    fn info(&self, now: u64) -> Option<ClaimInfo> {
        let used = self.used?;
        let mut record = match self.is_current() {
            true => ClaimRecord::shown(&self.holder),
            // Taken by hand, or by a claim that has not drawn its token yet. Zero says that it holds.
            false => ClaimRecord::foreign(format!("session {used}").as_bytes()),
        };
        record.evicted = self.evicted && self.is_current();
        let token = if self.is_current() { self.token } else { Token::default() };
        Some(record.into_info(Mode::Exclusive, Some(token), now, 0))
    }
}

async fn ask(client: &MysqlClient, text: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
    client.connection().await?.run(|session| session.ask(text, values)).await
}

async fn find(client: &MysqlClient, name: &str) -> Result<Vec<Held>, Failure> {
    Ok(ask(client, HOLDERS, &[text(name)]).await?.into_iter().filter_map(Held::read).collect())
}

/// Returns the claims that wait by statements that begin with `begins`, by key.
async fn waiters(client: &MysqlClient, begins: &str) -> Result<HashMap<String, Vec<ClaimInfo>>, Failure> {
    let now = client.runtime.clock().wall_micros();
    let mut keys: HashMap<String, Vec<ClaimInfo>> = HashMap::new();
    for mut row in ask(client, WAITERS, &[text(begins), text(begins)]).await? {
        if let Some((key, holder)) = row.take::<String, _>(0).and_then(|statement| read_wait(&statement)) {
            let claim = ClaimRecord::shown(&holder).into_info(Mode::Exclusive, None, now, 0);
            keys.entry(key).or_default().push(claim);
        }
    }
    Ok(keys)
}

/// Returns the claims of a name.
pub(crate) async fn inspect(client: &MysqlClient, name: &Name) -> Result<Info> {
    let key = client.server.key(name);
    let now = client.runtime.clock().wall_micros();
    let held = find(client, &key.name).await?;
    let mut claims: Vec<_> = held.iter().filter_map(|held| held.info(now)).collect();
    claims.extend(waiters(client, &wait_begins(&key.text)).await?.remove(&*key.text).unwrap_or_default());
    Ok(in_order(name.clone(), claims))
}

/// Returns a page of the names that are held.
pub(crate) async fn list(client: &MysqlClient, begins: &str, page: &Page) -> Result<Listing> {
    let prefix = &client.server.url().prefix;
    let begins = text(&format!("{prefix}{begins}"));
    let after = page.after.as_ref().map(|after| format!("{prefix}{after}")).unwrap_or_default();
    let limit = u64::try_from(page.limit).unwrap_or(u64::MAX).saturating_add(1);
    let values = [begins.clone(), begins.clone(), begins, text(&after), Value::UInt(limit)];
    let rows = ask(client, LIST, &values).await?;
    let now = client.runtime.clock().wall_micros();
    let mut names: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for held in rows.into_iter().filter_map(Held::read) {
        names.entry(held.name.clone()).or_default().push(held);
    }
    let (more, mut found) = (names.len() > page.limit, BTreeMap::new());
    let mut waiters = waiters(client, WAIT_BEGINS).await?;
    for (name, held) in names {
        let name = Name::new(name.strip_prefix(prefix.as_str()).unwrap_or(&name))?;
        let mut claims: Vec<_> = held.iter().filter_map(|held| held.info(now)).collect();
        claims.extend(waiters.remove(&*client.server.key(&name).text).unwrap_or_default());
        found.insert(name.as_str().to_owned(), claims);
    }
    page_of(found, page, more)
}

/// Marks a grant as evicted, which its holder reads with its next renewal. `now`: ends the holder's session.
pub(crate) async fn evict(
    client: &Arc<MysqlClient>,
    name: &Name,
    token: Token,
    how: &Eviction,
) -> Result<()> {
    let key = client.server.key(name);
    let why = how.reason.as_deref().unwrap_or_default();
    let found =
        find(client, &key.name).await?.into_iter().find(|held| held.is_current() && held.token == token);
    let Some(found) = found else {
        return Err(Error::no_grant(name.clone(), token).on(ENGINE));
    };
    if let Some(own) = held(client, &key.name, token) {
        if how.now {
            own.evict_now(why).await?;
        } else {
            own.evict(why);
        }
        return Ok(());
    }
    if !how.now {
        ask(client, EVICT, &[text(why), text(&key.name), token.get().into()]).await?;
        return Ok(());
    }
    let also = ask(client, ALSO, &[found.session.into(), text(&key.name)]).await?;
    if !also.is_empty() {
        let names: Vec<String> = also.into_iter().filter_map(|mut row| row.take(0)).collect();
        tracing::warn!(session = found.session, locks = ?names, "these locks end with the holder's session, too");
    }
    let kill = format!("KILL {}", found.session);
    client.connection().await?.run(|session| session.query(&kill)).await?;
    Ok(())
}
