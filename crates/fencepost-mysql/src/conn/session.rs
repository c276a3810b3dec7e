//! The statements of a connection that holds locks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, ClaimRecord, Mode, Token, jitter};
use fencepost_sql::Failure;
use fencepost_sql::connection_locks::{Locked, Session, Taken};
use futures_util::future::{try_join, try_join_all};
use mysql_common::row::Row;
use mysql_common::value::Value;

use crate::conn::channel::{Answer, Channel, PreparedStatement};
use crate::conn::connect::Connector;
use crate::conn::draws::Draws;
use crate::conn::statements::Statements;
use crate::error;
use crate::keys::Key;
use crate::schema::permits::{MysqlPermits, high};
use crate::schema::tokens::{self, MysqlTry};

/// How often permits are tried while other claims take some of the same name: each has the lock of the name for a moment.
const GATE_ATTEMPTS: u64 = 20;

/// A connection.
pub(crate) struct MysqlSession {
    pub(crate) connector: Arc<Connector>,
    pub(crate) channel: Channel,
    statements: Arc<Statements>,
    draws: Arc<Draws>,
    /// Held while the statements about permits of one claim are sent. They use variables of the session and the lock of the name, so
    /// those of another claim must not come between them.
    permits: Mutex<()>,
    /// The session's number at the server.
    pub(crate) number: u64,
}

impl MysqlSession {
    pub(crate) fn new(
        connector: Arc<Connector>,
        channel: Channel,
        statements: Statements,
        number: u64,
    ) -> MysqlSession {
        let statements = Arc::new(statements);
        let draws = Draws::new(channel.clone(), Arc::clone(&statements), connector.runtime.clone());
        MysqlSession { connector, channel, statements, draws, permits: Mutex::new(()), number }
    }

    /// Runs a prepared statement, which the first poll sends.
    async fn execute(&self, statement: &PreparedStatement, values: &[Value]) -> Result<Answer, Failure> {
        let reply = self.channel.execute(statement.number, values).await;
        reply.map_err(|error| error::read(error, &self.connector.server))
    }

    /// Runs a text without parameters, which the first poll sends.
    pub(crate) async fn query(&self, text: &str) -> Result<Vec<Row>, Failure> {
        let reply = self.channel.query(text).await;
        Ok(reply.map_err(|error| error::read(error, &self.connector.server))?.rows)
    }

    /// Prepares and runs a statement of an operator.
    pub(crate) async fn ask(&self, text: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let prepared = self.channel.prepare(text).await;
        let prepared = prepared.map_err(|error| error::read(error, &self.connector.server))?;
        Ok(self.execute(&prepared, values).await?.rows)
    }

    /// Runs a statement that returns one number. `None`: it is `NULL`.
    async fn number(&self, statement: &PreparedStatement, values: &[Value]) -> Result<Option<i64>, Failure> {
        Ok(first_number(self.execute(statement, values).await?.rows))
    }

    fn interrupted(&self) -> Failure {
        error::interrupted(&self.connector.server)
    }

    /// Sends statements about permits together. Returns their replies.
    async fn about_permits(&self, texts: &[String]) -> Result<Vec<Answer>, Failure> {
        let replies: Vec<_> = {
            let _together = self.permits.lock();
            texts.iter().map(|text| self.channel.query(text)).collect()
        };
        try_join_all(replies).await.map_err(|error| error::read(error, &self.connector.server))
    }

    /// Releases permits. Returns how many were held.
    async fn release_permits(
        &self,
        permits: MysqlPermits<'_>,
        numbers: &[u32],
    ) -> Result<Option<i64>, Failure> {
        let mut answers = self.about_permits(&[permits.release(numbers)]).await?;
        Ok(answers.pop().and_then(|answer| first_number(answer.rows)))
    }

    /// Takes permits, all or none.
    async fn try_permits(
        &self,
        claim: &Claim,
        permits: MysqlPermits<'_>,
        n: u32,
    ) -> Result<Option<Taken>, Failure> {
        let (texts, clock) = (permits.try_take(n, &record(claim)), claim.runtime.clock());
        for attempt in 0..GATE_ATTEMPTS {
            let mut answers = self.about_permits(&texts).await?;
            let locked = first_number(std::mem::take(&mut answers[2].rows));
            let Some(mut row) = answers[4].rows.pop() else { return Ok(None) };
            let (numbers, token) = (row.take_opt::<String, _>(0), row.take_opt::<u64, _>(1));
            if let (Some(Ok(numbers)), Some(Ok(token))) = (numbers, token) {
                let numbers: Vec<u32> = numbers.split(',').filter_map(|number| number.parse().ok()).collect();
                if numbers.len() as u64 == u64::from(n) && locked == Some(n.into()) {
                    return Ok(Some(Taken { token: Token::new(token), permits: numbers }));
                }
                // Somebody took one by hand.
                self.release_permits(permits, &numbers).await?;
                return Ok(None);
            }
            let flag = |number: Option<Result<u8, _>>| number.and_then(Result::ok) == Some(1);
            let (is_held, had_gate) = (flag(row.take_opt::<u8, _>(2)), flag(row.take_opt::<u8, _>(3)));
            if is_held || had_gate {
                return Ok(None);
            }
            clock.sleep_until(clock.now() + jitter(Duration::from_millis(2), attempt + self.number)).await;
        }
        Ok(None)
    }
}

fn permits(key: &Key, of: u32) -> MysqlPermits<'_> {
    MysqlPermits { gate: &key.text, begins: &key.permits, name: &key.name, of }
}

/// Returns two texts between which the locks of the permits lie.
fn range(key: &Key) -> [Vec<u8>; 2] {
    [key.permits.as_bytes().to_vec(), high(&key.permits).into_bytes()]
}

impl Session for MysqlSession {
    type Keys = Key;

    /// The token is zero if there are none.
    fn try_lock<'a>(
        &'a self,
        claim: &'a Claim,
        key: &'a Key,
        _again: bool,
        _free: &'a [u32],
    ) -> fencepost_sql::Answer<'a, Option<Taken>> {
        Box::pin(async move {
            if let Mode::Permits { n, of } = claim.want().mode {
                return self.try_permits(claim, permits(key, of), n).await;
            }
            if self.statements.draw.is_none() {
                return match self.number(&self.statements.try_lock, &[text(&key.text)]).await? {
                    Some(1) => Ok(Some(Taken::default())),
                    Some(_) => Ok(None),
                    None => Err(self.interrupted()),
                };
            }
            let (lock, name) = (key.text.as_bytes().to_vec(), key.name.as_bytes().to_vec());
            let asked = MysqlTry { lock, name, holder: record(claim), permits: range(key) };
            let answer = self.draws.take(asked).await;
            let answer = answer.map_err(|error| error::read(error, &self.connector.server))?;
            let token = Token::new(answer.insert_id);
            Ok((answer.affected > 0).then(|| Taken { token, ..Taken::default() }))
        })
    }

    fn wait<'a>(&'a self, claim: &'a Claim, key: &'a Key) -> fencepost_sql::Answer<'a, Option<Token>> {
        Box::pin(async move {
            // Nothing is sent behind it: the server notices that a waiting client has left only if nothing is left to read.
            let statement = tokens::wait(&key.text, &record(claim));
            match first_number(self.query(&statement).await?) {
                Some(1) => Ok(Some(Token::default())),
                _ => Err(self.interrupted()),
            }
        })
    }

    /// Draws the token: a statement that waits must not write. `None`: permits are held.
    fn confirm<'a>(
        &'a self,
        claim: &'a Claim,
        key: &'a Key,
        _: Token,
        idle: Duration,
    ) -> fencepost_sql::Answer<'a, Option<Token>> {
        Box::pin(async move {
            let Some(draw) = &self.statements.draw else {
                self.set_idle(idle).await?;
                return Ok(Some(Token::default()));
            };
            let [low, high] = range(key).map(Value::Bytes);
            let values = [text(&key.text), text(&key.name), Value::Bytes(record(claim)), low, high];
            let (_, answer) = try_join(self.set_idle(idle), self.execute(draw, &values)).await?;
            if answer.affected == 0 {
                self.clean(key).await?;
                return Ok(None);
            }
            Ok(Some(Token::new(answer.insert_id)))
        })
    }

    fn unlock<'a>(&'a self, locked: &'a Locked<Key>) -> fencepost_sql::Answer<'a, bool> {
        Box::pin(async {
            if let Mode::Permits { of, .. } = locked.mode {
                let released = self.release_permits(permits(&locked.keys, of), &locked.permits).await?;
                return Ok(released == i64::try_from(locked.permits.len()).ok());
            }
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
        let seconds = idle.as_secs();
        Box::pin(async move { self.execute(&self.statements.set_idle, &[seconds.into()]).await.map(drop) })
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
