//! Implements [`fencepost_sql::RowServer`].

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, Report};
use fencepost_sql::{
    Answer, Failure, OpenTransaction, Plain, Renewed, RowServer, Statement, ended_early, texts,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, try_join_all};

use crate::client::whole_seconds;
use crate::conn::channel::Answer as Reply;
use crate::conn::connect::Connector;
use crate::doctor;
use crate::error::Unanswered;
use crate::table::connection::{PlainClient, ROW_TIMEOUT_SECS};
use crate::table::statement::{self, failed};

/// The savepoint behind the lock. Only the transaction that has the lock has it.
const KEEP: &str = "SAVEPOINT fencepost";

const FREE: &str = "RELEASE SAVEPOINT fencepost";

/// The server's error for a savepoint that does not exist.
const NO_SAVEPOINT: u16 = 1305;

/// The statements of the holder wait for other rows as long as the server's configuration says.
const LIMITS: &str = "SET SESSION innodb_lock_wait_timeout = DEFAULT, lock_wait_timeout = DEFAULT";

/// A claim waits in the server's queue without a limit: 3 years, the longest on MariaDB.
const NO_LIMITS: &str = "SET SESSION innodb_lock_wait_timeout = 100000000, lock_wait_timeout = 31536000";

type Replied<T> = Result<T, Unanswered>;

/// An open transaction.
pub(crate) type MysqlRow = OpenTransaction<Connector>;

/// Returns the text that sets after what time the server ends the connection.
fn set_idle(idle: Duration) -> String {
    format!("SET SESSION wait_timeout = {}", whole_seconds(idle).as_secs())
}

impl RowServer for Connector {
    /// Without `autocommit`, what follows an end of the transaction is not committed. The lock of the transaction's number shows others
    /// that the transaction is open.
    fn begin(&self, idle: Duration, number: i64) -> Vec<Statement> {
        let idle = format!("{}, autocommit = 0", set_idle(idle));
        let mark = format!(
            "SELECT CONNECTION_ID(), {number} FROM DUAL WHERE GET_LOCK('fencepost.row:{number}', 0) = 1"
        );
        texts(&[&idle, "START TRANSACTION", &mark])
    }

    fn keep(&self) -> Vec<Statement> {
        texts(&[LIMITS, KEEP])
    }

    fn before_wait(&self) -> Vec<Statement> {
        texts(&[NO_LIMITS])
    }

    fn set_idle(&self, idle: Duration) -> Statement {
        Statement::new(set_idle(idle), Vec::new())
    }

    fn interrupt(&self, connection: i64) -> Statement {
        Statement::new(format!("KILL QUERY {connection}"), Vec::new())
    }

    fn renew(open: &MysqlRow, idle: Duration, look: Statement) -> Answer<'_, Renewed> {
        async move {
            let server = &open.server.server;
            let set = open.client.channel.query(&set_idle(idle));
            let look = [look];
            let look = statement::run(&open.client, &look, server);
            let (set, rows) = open.within(open.limit(), join(set, look).map(Ok)).await?;
            // `look` begins a transaction if none is open.
            if !set.map_err(|error| failed(error, server))?.in_transaction {
                return Ok(Renewed::Over);
            }
            Ok(Renewed::Open(rows.map_err(|failure| open.server.explain(failure))?.pop().unwrap_or_default()))
        }
        .boxed()
    }

    fn commit(open: &MysqlRow, last: String, limit: Moment) -> Answer<'_, ()> {
        async move {
            let (channel, server) = (&open.client.channel, &open.server.server);
            if open.is_lent() {
                // The holder may have ended the transaction and begun another one, which must not be committed.
                let proof = channel.query(FREE).map(Ok);
                match open.within(limit, proof).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(Unanswered::Refused { code: NO_SAVEPOINT, .. })) => return Err(ended_early()),
                    Ok(Err(error)) => return Err(Failure { uncertain: false, ..failed(error, server) }),
                    Err(failure) => return Err(Failure { uncertain: false, ..failure }),
                }
            }
            // All are sent before the first reply arrives.
            let (commit, after) = open.within(limit, async { Ok(send_end(open, "COMMIT", &last)) }).await?;
            let commit = commit.map(|reply| reply.map_err(|error| uncertain(error, server)));
            open.within(limit, commit).await?;
            // The changes are committed. A connection that cannot be set back is closed.
            if !matches!(open.within(limit, after.map(Ok)).await, Ok(Ok(_))) {
                open.end();
            }
            Ok(())
        }
        .boxed()
    }

    fn roll_back(open: &MysqlRow, then: String, limit: Moment) -> Answer<'_, ()> {
        async move {
            let ending = async {
                let (roll_back, after) = send_end(open, "ROLLBACK", &then);
                let (undone, after) = join(roll_back, after).await;
                undone.and(after)
            };
            let ended = open.within(limit, ending.map(Ok)).await?;
            ended.map(drop).map_err(|error| failed(error, &open.server.server))
        }
        .boxed()
    }

    /// The server does not notice that the client of a statement has left.
    fn kill(open: &MysqlRow) -> BoxFuture<'static, ()> {
        let (server, text) = (Arc::clone(&open.server), format!("KILL {}", open.numbers().0));
        async move {
            if let Ok(other) = Plain::open(&*server).await {
                let _ = other.client.channel.query(&text).await;
            }
        }
        .boxed()
    }

    #[cfg(feature = "mysql_async")]
    fn native(open: &Arc<MysqlRow>) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(crate::row::native::RowTransaction::new(Arc::clone(open))))
    }

    #[cfg(not(feature = "mysql_async"))]
    fn native(_: &Arc<MysqlRow>) -> Option<Box<dyn Any + Send>> {
        None
    }

    fn examine<'a>(&'a self, client: &'a PlainClient) -> Answer<'a, Report> {
        Box::pin(doctor::examine_rows(&client.channel, &self.server))
    }
}

/// Sends the end of a transaction, and what follows it: the connection is set back, and the claim's note is removed.
fn send_end(
    open: &MysqlRow,
    end: &str,
    then: &str,
) -> (impl Future<Output = Replied<Reply>> + use<>, impl Future<Output = Replied<Vec<Reply>>> + use<>) {
    let channel = &open.client.channel;
    let release = format!("DO RELEASE_LOCK('fencepost.row:{}')", open.numbers().1);
    let set_back = format!(
        "SET SESSION wait_timeout = DEFAULT, autocommit = 1, lock_wait_timeout = {ROW_TIMEOUT_SECS}, \
         innodb_lock_wait_timeout = {ROW_TIMEOUT_SECS}"
    );
    let end = channel.query(end);
    (end, try_join_all([&release, &set_back, then].map(|text| channel.query(text))))
}

/// Reads the error of a commit. Only a wait for others that ended says that nothing was committed.
fn uncertain(error: Unanswered, server: &str) -> Failure {
    let undone = matches!(error, Unanswered::Refused { code: 1205 | 1213, .. });
    Failure { uncertain: !undone, ..failed(error, server) }
}
