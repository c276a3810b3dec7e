//! The statements of a connection that holds locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, ClaimRecord, Token};
use fencepost_sql::Failure;
use fencepost_sql::connection_locks::{Locked, Session};
use futures_util::future::try_join;
use mysql_common::row::Row;
use mysql_common::value::Value;

use crate::conn::channel::{Answer, Channel, PreparedStatement};
use crate::conn::connect::Connector;
use crate::conn::draws::Draws;
use crate::conn::statements::Statements;
use crate::error::{self, Unanswered};
use crate::keys::Key;
use crate::schema::tokens::{self, MysqlTry};

/// Returns 1 if the server accepts no writes. `super_read_only` of MySQL sets `read_only` as well. A version of MariaDB may return a text.
const IS_READ_ONLY: &str = "SELECT CONCAT(@@global.read_only) NOT IN ('0', 'OFF')";

/// A connection.
pub(crate) struct MysqlSession {
    pub(crate) connector: Arc<Connector>,
    pub(crate) channel: Channel,
    statements: Arc<Statements>,
    draws: Arc<Draws>,
    /// The session's number at the server.
    pub(crate) number: u64,
    /// Tells its server from others.
    identity: String,
}

impl MysqlSession {
    pub(crate) fn new(
        connector: Arc<Connector>,
        channel: Channel,
        statements: Statements,
        number: u64,
        identity: String,
    ) -> MysqlSession {
        let statements = Arc::new(statements);
        let draws = Draws::new(channel.clone(), Arc::clone(&statements), connector.runtime.clone());
        MysqlSession { connector, channel, statements, draws, number, identity }
    }

    /// Runs a prepared statement, which the first poll sends.
    async fn execute(&self, statement: &PreparedStatement, values: &[Value]) -> Result<Answer, Failure> {
        let reply = self.channel.execute(statement.number, values).await;
        reply.map_err(|error| self.failed(error))
    }

    /// Reads why a statement has no reply. A server that has become read-only is left.
    fn failed(&self, error: Unanswered) -> Failure {
        if error.is_read_only() {
            self.connector.servers.leave(&self.identity);
        }
        error::read(error, &self.connector.server)
    }

    /// Runs a text without parameters, which the first poll sends.
    pub(crate) async fn query(&self, text: &str) -> Result<Vec<Row>, Failure> {
        let reply = self.channel.query(text).await;
        Ok(reply.map_err(|error| self.failed(error))?.rows)
    }

    /// Prepares and runs a statement of an operator.
    pub(crate) async fn ask(&self, text: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let prepared = self.channel.prepare(text).await;
        let prepared = prepared.map_err(|error| self.failed(error))?;
        Ok(self.execute(&prepared, values).await?.rows)
    }

    /// Runs a statement that returns one number. `None`: it is `NULL`.
    async fn number(&self, statement: &PreparedStatement, values: &[Value]) -> Result<Option<i64>, Failure> {
        Ok(first_number(self.execute(statement, values).await?.rows))
    }

    /// Sets the idle timeout, which starts again with each statement.
    async fn set_wait_timeout(&self, idle: Duration) -> Result<(), Failure> {
        self.execute(&self.statements.set_idle, &[idle.as_secs().into()]).await.map(drop)
    }

    /// Fails if the server accepts no writes any more: another one may be the primary, which grants the same locks again. No connection ends
    /// by that, and the other statements work on.
    async fn check_writable(&self) -> Result<(), Failure> {
        match first_number(self.query(IS_READ_ONLY).await?) {
            Some(1) => {
                self.connector.servers.leave(&self.identity);
                Err(error::read_only(&self.connector.server))
            }
            _ => Ok(()),
        }
    }

    fn interrupted(&self) -> Failure {
        error::interrupted(&self.connector.server)
    }
}

impl Session for MysqlSession {
    type Keys = Key;

    /// The token is zero if there are none.
    fn try_lock<'a>(
        &'a self,
        claim: &'a Claim,
        key: &'a Key,
        _reused: bool,
    ) -> fencepost_sql::Answer<'a, Option<Token>> {
        Box::pin(async move {
            if self.statements.draw.is_none() {
                return match self.number(&self.statements.try_lock, &[text(&key.text)]).await? {
                    Some(1) => Ok(Some(Token::default())),
                    Some(_) => Ok(None),
                    None => Err(self.interrupted()),
                };
            }
            let (lock, name) = (key.text.as_bytes().to_vec(), key.name.as_bytes().to_vec());
            let answer = self.draws.take(MysqlTry { lock, name, holder: record(claim) }).await;
            let answer = answer.map_err(|error| self.failed(error))?;
            Ok((answer.affected > 0).then(|| Token::new(answer.insert_id)))
        })
    }

    fn wait<'a>(&'a self, claim: &'a Claim, key: &'a Key) -> fencepost_sql::Answer<'a, Token> {
        Box::pin(async move {
            // Nothing is sent behind it: the server notices that a waiting client has left only if nothing is left to read.
            let statement = tokens::wait(&key.text, &record(claim));
            match first_number(self.query(&statement).await?) {
                Some(1) => Ok(Token::default()),
                _ => Err(self.interrupted()),
            }
        })
    }

    /// Draws the token: a statement that waits must not write.
    fn confirm<'a>(
        &'a self,
        claim: &'a Claim,
        key: &'a Key,
        _: Token,
        idle: Duration,
    ) -> fencepost_sql::Answer<'a, Token> {
        Box::pin(async move {
            let Some(draw) = &self.statements.draw else {
                self.set_idle(idle).await?;
                return Ok(Token::default());
            };
            let values = [text(&key.text), text(&key.name), Value::Bytes(record(claim))];
            let (_, answer) = try_join(self.set_wait_timeout(idle), self.execute(draw, &values)).await?;
            Ok(Token::new(answer.insert_id))
        })
    }

    fn unlock<'a>(&'a self, locked: &'a Locked<Key>) -> fencepost_sql::Answer<'a, bool> {
        Box::pin(async {
            Ok(self.number(&self.statements.release, &[text(&locked.keys.text)]).await? == Some(1))
        })
    }

    fn clean<'a>(&'a self, key: &'a Key) -> fencepost_sql::Answer<'a, ()> {
        Box::pin(async { self.number(&self.statements.release, &[text(&key.text)]).await.map(drop) })
    }

    fn is_queued<'a>(&'a self, other: &'a MysqlSession) -> fencepost_sql::Answer<'a, bool> {
        Box::pin(async {
            let count = self.number(&self.statements.is_queued, &[other.number.into()]).await?;
            Ok(count.is_some_and(|count| count > 0))
        })
    }

    fn set_idle(&self, idle: Duration) -> fencepost_sql::Answer<'_, ()> {
        // In one round trip.
        Box::pin(async move { try_join(self.set_wait_timeout(idle), self.check_writable()).await.map(drop) })
    }
}

/// Describes the holder, without the claim's id, which is a secret.
fn record(claim: &Claim) -> Vec<u8> {
    ClaimRecord { id: None, ..ClaimRecord::of(claim) }.to_bytes()
}

fn first_number(rows: Vec<Row>) -> Option<i64> {
    rows.into_iter().next().and_then(|mut row| row.take_opt::<i64, _>(0)?.ok())
}

/// Returns a text as a parameter.
pub(crate) fn text(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}
