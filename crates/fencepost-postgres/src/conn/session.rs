//! The statements of a connection that holds locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Mode, Token};
use fencepost_sql::connection_locks::{Locked, Session};
use fencepost_sql::{Answer, Failure};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::conn::connect::{Connector, DriverClient};
use crate::conn::statements::{NAMED, REMOVE_NAMES, Sql, Statements, WRITE_NAMES};
use crate::error;

/// A connection.
pub(crate) struct PostgresSession {
    pub(crate) connector: Arc<Connector>,
    pub(crate) client: DriverClient,
    pub(crate) statements: Statements,
    pub(crate) pid: i32,
}

/// A backend that holds a key or waits for it.
pub(crate) struct Backend {
    /// The name of the client, which is also the channel of replies to it.
    pub(crate) client: String,
    /// The whole name of the session, with the client's label.
    pub(crate) session: String,
    pub(crate) pid: i32,
    pub(crate) holds: bool,
    pub(crate) shared: bool,
}

impl Backend {
    fn read(row: &Row) -> Backend {
        let session: String = row.get(0);
        Backend {
            client: client_of(&session),
            session,
            pid: row.get(1),
            holds: row.get(2),
            shared: row.get(3),
        }
    }
}

/// Returns the client of a session, by its name.
fn client_of(session: &str) -> String {
    session.split(' ').next().unwrap_or_default().to_owned()
}

impl PostgresSession {
    fn failed(&self, error: &tokio_postgres::Error) -> Failure {
        error::read(error, &self.connector.server)
    }

    /// Listens to channels, whose names need no quotes.
    pub(crate) async fn listen(&self, channels: &[&str]) -> Result<(), Failure> {
        let text = channels.iter().map(|channel| format!("LISTEN {channel};")).collect::<String>();
        self.client.batch_execute(&text).await.map_err(|error| self.failed(&error))
    }

    /// Cancels the statement that another connection of this client runs. The server has sent the signal when it answers.
    pub(crate) async fn cancel(&self, other: &PostgresSession) -> Result<(), Failure> {
        self.query(Sql::Cancel, &[&other.pid]).await.map(drop)
    }

    /// Sends `text` to a channel.
    pub(crate) async fn notify(&self, channel: &str, text: &str) -> Result<(), Failure> {
        self.query(Sql::Notify, &[&channel, &text]).await.map(drop)
    }

    /// Returns the clients whose backends hold the key or wait for it: the name of the session, the backend, whether it
    /// holds, and whether shared.
    pub(crate) async fn backends(&self, key: i64) -> Result<Vec<Backend>, Failure> {
        let rows = self.rows(Sql::Backends, &[&key]).await?;
        Ok(rows.iter().map(Backend::read).collect())
    }

    /// Returns the backends that hold keys whose names are in the table, with the names: those that begin with `begins` and follow
    /// `after`, in order.
    pub(crate) async fn named(
        &self,
        prefix: &str,
        begins: &str,
        after: &str,
    ) -> Result<Vec<(String, Backend)>, Failure> {
        let rows = self.once(NAMED, &[&prefix, &begins, &after]).await?;
        Ok(rows.iter().map(|row| (row.get(4), Backend::read(row))).collect())
    }

    /// Writes names to the table, and removes some that nobody has used for long.
    pub(crate) async fn write_names(
        &self,
        prefix: &str,
        keys: &[i64],
        names: &[String],
    ) -> Result<(), Failure> {
        self.once(WRITE_NAMES, &[&prefix, &keys, &names]).await?;
        self.once(REMOVE_NAMES, &[]).await.map(drop)
    }

    /// Returns the clients of the database.
    pub(crate) async fn clients(&self) -> Result<Vec<String>, Failure> {
        Ok(self.rows(Sql::Sessions, &[]).await?.into_iter().map(|row| client_of(row.get(0))).collect())
    }

    /// Runs a statement without parameters that returns one row.
    pub(crate) async fn one_row(&self, text: &str) -> Result<Row, Failure> {
        let rows = self.once(text, &[]).await?;
        rows.into_iter().next().ok_or_else(|| Failure::ended(&self.connector.server))
    }

    /// Runs a statement that is used too rarely to be kept.
    async fn once(&self, text: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        self.client.query(text, values).await.map_err(|error| self.failed(&error))
    }

    async fn rows(&self, sql: Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        self.client.query(self.statements.get(sql), values).await.map_err(|error| self.failed(&error))
    }

    /// Sends a statement with its first poll and checks which backend ran it.
    async fn query(&self, sql: Sql, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Failure> {
        match self.client.query_one(self.statements.get(sql), values).await {
            Ok(row) if row.get::<_, i32>(0) == self.pid => Ok(row),
            Ok(_) => Err(Failure { unusable: true, ..error::pooled(&self.connector.server) }),
            Err(error) => Err(self.failed(&error)),
        }
    }
}

impl Session for PostgresSession {
    type Keys = i64;

    fn try_lock<'a>(&'a self, claim: &'a Claim, key: &'a i64, reused: bool) -> Answer<'a, Option<Token>> {
        let statement = match claim.want().mode {
            Mode::Shared if reused => Sql::TrySharedAgain,
            Mode::Shared => Sql::TryShared,
            Mode::Exclusive | Mode::Permits { .. } => Sql::TryLock,
        };
        Box::pin(async move { Ok(self.query(statement, &[key]).await?.get::<_, Option<i64>>(1).map(token)) })
    }

    fn wait<'a>(&'a self, claim: &'a Claim, key: &'a i64) -> Answer<'a, Token> {
        let statement = if claim.want().mode == Mode::Shared { Sql::LockShared } else { Sql::Lock };
        Box::pin(async move { Ok(token(self.query(statement, &[key]).await?.get(2))) })
    }

    fn confirm<'a>(&'a self, _: &'a Claim, _: &'a i64, token: Token, idle: Duration) -> Answer<'a, Token> {
        Box::pin(async move { self.set_idle(idle).await.map(|()| token) })
    }

    fn unlock<'a>(&'a self, Locked { keys, mode }: &'a Locked<i64>) -> Answer<'a, bool> {
        let statement = if *mode == Mode::Shared { Sql::UnlockShared } else { Sql::Unlock };
        Box::pin(async move { Ok(self.query(statement, &[keys]).await?.get(1)) })
    }

    fn clean<'a>(&'a self, _: &'a i64) -> Answer<'a, ()> {
        Box::pin(async { self.query(Sql::UnlockAll, &[]).await.map(drop) })
    }

    fn is_queued<'a>(&'a self, other: &'a PostgresSession) -> Answer<'a, bool> {
        Box::pin(async { Ok(self.query(Sql::IsQueued, &[&other.pid]).await?.get(1)) })
    }

    fn set_idle(&self, idle: Duration) -> Answer<'_, ()> {
        Box::pin(async move { self.query(Sql::Ping, &[&idle.as_millis().to_string()]).await.map(drop) })
    }
}

fn token(value: i64) -> Token {
    Token::new(value.unsigned_abs())
}
