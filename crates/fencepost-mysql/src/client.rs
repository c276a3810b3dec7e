//! The state that the parts of one client share.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Name, Runtime, Token, Want};
use fencepost_sql::connection_locks::{Connection, ConnectionLocks, ConnectionTask, Held, OneServer, Server};
use fencepost_sql::{Answer, Failure, ServerUrl, TableOfRecords, records_beside};

use crate::config::Config;
use crate::conn::connect::{Connector, Found};
use crate::conn::session::MysqlSession;
use crate::error::ENGINE;
use crate::keys::{self, Key};
use crate::schema::dialect::MYSQL;
use crate::schema::tokens::EVICTED;

/// A client.
pub(crate) type MysqlClient = ConnectionLocks<MysqlServer>;

/// The server as a client uses it.
pub(crate) struct MysqlServer {
    connector: Arc<Connector>,
}

/// Connects and checks that the server accepts this client.
pub(crate) async fn open(
    config: Config,
    runtime: Runtime,
    servers: Arc<OneServer>,
) -> Result<Arc<MysqlClient>, Failure> {
    let connector = Arc::new(Connector::new(config, runtime.clone(), servers)?);
    ConnectionLocks::open(Arc::new(MysqlServer { connector }), runtime).await
}

/// Returns the records beside named locks. `servers`: that of the locks, because a job would run twice if its lock and its record were at two
/// servers.
pub(crate) fn records(
    mut config: Config,
    runtime: &Runtime,
    servers: Arc<OneServer>,
) -> Result<Arc<TableOfRecords>, Failure> {
    // No lock belongs to its connection, so no program has to inherit one.
    config.server.pinned = false;
    let connector = Arc::new(Connector::new(config, runtime.clone(), servers)?);
    Ok(records_beside(&connector, &MYSQL, "fencepost_record", ENGINE))
}

impl MysqlServer {
    /// Returns the findings of the first connection.
    pub(crate) fn found(&self) -> &Found {
        self.connector.found().expect("a client that was opened has connected")
    }

    /// Returns the server's name of a lock.
    pub(crate) fn key(&self, name: &Name) -> Key {
        keys::key(&self.found().database, &self.url().prefix, name)
    }
}

/// Returns the lock with this name and token if a claim of this client holds it.
pub(crate) fn held(client: &MysqlClient, name: &str, token: Token) -> Option<Arc<Held<MysqlServer>>> {
    client.listed.find(token, |held| &*held.locked.keys.name == name)
}

/// Returns the number of whole seconds that is not shorter.
pub(crate) fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

impl Server for MysqlServer {
    const ENGINE: &'static str = ENGINE;
    const CANNOT_DETACH: &'static str = "a lock by GET_LOCK ends with its connection and cannot be detached";

    type Session = MysqlSession;

    fn url(&self) -> &ServerUrl {
        &self.connector.config.server
    }

    fn name(&self) -> &str {
        &self.connector.server
    }

    /// The server counts whole seconds.
    fn idle_for(ttl: Duration) -> Duration {
        whole_seconds(ttl)
    }

    fn keys(&self, want: &Want) -> Key {
        self.key(&want.name)
    }

    fn connect(self: &Arc<Self>, idle: Duration, _: bool) -> Answer<'_, (MysqlSession, ConnectionTask)> {
        Box::pin(self.connector.connect(idle))
    }

    fn interrupt<'a>(
        client: &'a MysqlClient,
        waiting: &'a Connection<MysqlServer>,
        ttl: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let text = format!("KILL QUERY {}", waiting.session().number);
            client.connections.holding(ttl).await?.run(|session| session.query(&text)).await.map(drop)
        })
    }

    /// Reads the marks of evictions.
    fn renewed<'a>(client: &'a Arc<MysqlClient>, connection: &'a Connection<MysqlServer>) -> Answer<'a, ()> {
        Box::pin(async move {
            if client.server.found().no_tokens.is_some() {
                return Ok(());
            }
            let evicted = connection.run(|session| session.query(EVICTED)).await.unwrap_or_else(|failure| {
                // The claims are confirmed all the same.
                tracing::warn!(?failure, "evictions cannot be read");
                Vec::new()
            });
            for mut row in evicted {
                let (name, token) = (row.take::<String, _>(0), row.take::<u64, _>(1));
                let why = row.take_opt::<Vec<u8>, _>(2).and_then(|why| why.ok()).unwrap_or_default();
                let (Some(name), Some(token)) = (name, token) else { continue };
                if let Some(held) = held(client, &name, Token::new(token)) {
                    held.evict(&String::from_utf8_lossy(&why));
                }
            }
            Ok(())
        })
    }
}
