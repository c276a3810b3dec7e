//! Implements [`fencepost_sql::RowServer`].

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backoff, ErrorKind, Moment, Report};
use fencepost_sql::{
    Answer, Connect, Failure, OpenTransaction, Plain, Renewed, RowServer, Statement, Value, ended_early,
    on_own_thread, texts,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use crate::conn::connect::Connector;
use crate::doctor;
use crate::error;
use crate::table::connection::PlainClient;

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// Sets the limits of the transaction. The server ends it if its client is silent for `$1`; a limit of the server's own configuration
/// would end the wait. Draws the id of the transaction: others see by it whether the transaction is open.
const SETTINGS: &str = "SELECT pg_backend_pid(), pg_current_xact_id()::xid::text::int8, \
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8, set_config('client_connection_check_interval', '500ms', true), set_config('idle_in_transaction_session_timeout', $1, true), \
    set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true), \
    CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END";

const SET_IDLE: &str = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)";

const RENEW: &str = "SELECT pg_current_xact_id_if_assigned()::xid::text::int8, \
    set_config('idle_in_transaction_session_timeout', $1, true)";

/// Returns what became of the transaction with the 32-bit id `$1`, if the server is the one that started at `$2`: another server, and one
/// that has crashed, may give an id twice.
const OUTCOME: &str = "SELECT pg_xact_status((last - (last - $1) % 4294967296)::text::xid8), \
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8 = $2 \
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS last) AS ids";

const CANCEL: &str = "SELECT pg_cancel_backend($1::int4)";

/// The savepoint behind the lock. Without it a statement that fails frees the lock at once.
const KEEP: &str = "SAVEPOINT fencepost";

const FREE: &str = "RELEASE SAVEPOINT fencepost";

/// An open transaction.
pub(crate) type PostgresRow = OpenTransaction<Connector>;

fn text(text: &str, values: Vec<Value>) -> Statement {
    Statement::new(text, values)
}

fn millis(idle: Duration) -> Value {
    Value::from(&*idle.as_millis().to_string())
}

impl RowServer for Connector {
    fn begin(&self, idle: Duration, _: i64) -> Vec<Statement> {
        vec![text(BEGIN, Vec::new()), text(SETTINGS, vec![millis(idle)])]
    }

    fn keep(&self) -> Vec<Statement> {
        texts(&[KEEP])
    }

    /// A failure of the savepoint would free the lock.
    fn before_wait(&self) -> Vec<Statement> {
        texts(&[FREE])
    }

    fn set_idle(&self, idle: Duration) -> Statement {
        text(SET_IDLE, vec![millis(idle)])
    }

    fn interrupt(&self, connection: i64) -> Statement {
        text(CANCEL, vec![connection.into()])
    }

    fn renew(open: &PostgresRow, idle: Duration, look: Statement) -> Answer<'_, Renewed> {
        async move {
            let longer = idle > open.idle();
            if longer && open.is_lent() {
                let message = "the lease of a row lock cannot become longer once its transaction is used: a rollback to a savepoint \
                               would shorten it again; choose the ttl when the lock is acquired";
                return Err(Failure::new(ErrorKind::Unsupported, message));
            }
            let renew = text(RENEW, vec![millis(idle)]);
            // The longer lease must not end with the savepoint.
            let free = longer.then(|| text(FREE, Vec::new()));
            let keep = longer.then(|| text(KEEP, Vec::new()));
            let number = usize::from(longer);
            let all = free.into_iter().chain([renew, look]).chain(keep).collect();
            let mut results = match open.run(all).await {
                Err(failure) if is_failed(&failure) => return Ok(Renewed::Failed),
                results => results?,
            };
            let own = results.get(number).and_then(|rows| rows.first()).map(|row| row.int(0));
            if own != Some(open.numbers().1) {
                return Ok(Renewed::Over);
            }
            Ok(Renewed::Open(results.swap_remove(number + 1)))
        }
        .boxed()
    }

    fn commit(open: &PostgresRow, last: String, limit: Moment) -> Answer<'_, ()> {
        async move {
            // If a statement of the holder failed, the first one of these fails, and nothing is committed.
            let text = format!("SELECT pg_current_xact_id_if_assigned()::xid::text; {last}; COMMIT");
            let own = |reply: &SimpleQueryMessage| match reply {
                SimpleQueryMessage::Row(row) => {
                    row.get(0).and_then(|id| id.parse().ok()) == Some(open.numbers().1)
                }
                _ => false,
            };
            let replies = match simple(open, &text, limit).await {
                Err(failure) if failure.uncertain => return learn_outcome(open, failure).await,
                replies => replies?,
            };
            match replies.iter().any(own) {
                true => Ok(()),
                false => Err(ended_early()),
            }
        }
        .boxed()
    }

    fn roll_back(open: &PostgresRow, then: String, limit: Moment) -> Answer<'_, ()> {
        async move { simple(open, &format!("ROLLBACK; {then}"), limit).await.map(drop) }.boxed()
    }

    /// If it fails the server notices within 500 ms that the connection has ended.
    fn kill(open: &PostgresRow) -> BoxFuture<'static, ()> {
        let (connector, client) = (Arc::clone(&open.server), Arc::clone(&open.client));
        async move { drop(connector.cancel(&client.driver.cancel_token(), &client.host).await) }.boxed()
    }

    #[cfg(feature = "tokio-postgres")]
    fn native(open: &Arc<PostgresRow>) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(crate::row::native::RowTransaction::new(Arc::clone(open))))
    }

    #[cfg(not(feature = "tokio-postgres"))]
    fn native(_: &Arc<PostgresRow>) -> Option<Box<dyn Any + Send>> {
        None
    }

    fn examine<'a>(&'a self, client: &'a PlainClient) -> Answer<'a, Report> {
        Box::pin(doctor::examine_rows(&client.driver, &self.server))
    }
}

/// Asks the server on another connection what became of a transaction whose commit has no reply. `failure`: the commit's. It is returned
/// if the server does not know, or not in time.
async fn learn_outcome(open: &PostgresRow, failure: Failure) -> Result<(), Failure> {
    let (Some(start), (_, id)) = (open.server_start, open.numbers()) else { return Err(failure) };
    let (connector, limit) = (Arc::clone(&open.server), open.limit());
    // The server ends the transaction when it notices that the connection has ended.
    open.end();
    let asking = on_own_thread(&open.server.runtime, async move {
        let clock = connector.runtime.clock();
        Ok(clock.within(limit, ask_outcome(&connector, id, start)).await.flatten())
    });
    match asking.await? {
        Some(true) => Ok(()),
        Some(false) => {
            let message = format!("{}, and nothing of the transaction was committed", failure.message);
            Err(Failure { kind: ErrorKind::Lost, uncertain: false, message, ..failure })
        }
        None => Err(failure),
    }
}

/// Returns whether the transaction was committed, when it has ended. `None`: the server does not know.
async fn ask_outcome(connector: &Connector, id: i64, start: i64) -> Option<bool> {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
    let ask = [text(OUTCOME, vec![id.into(), start.into()])];
    loop {
        if let Ok(plain) = Plain::open(connector).await
            && let Ok(results) = connector.run(&plain.client, &ask).await
            && let Some(row) = results.first().and_then(|rows| rows.first())
        {
            match row.text(0).map(|status| &**status) {
                _ if row.optional(1) != Some(1) => return None,
                Some("committed") => return Some(true),
                Some("aborted") => return Some(false),
                Some(_) => {}
                None => return None,
            }
        }
        backoff.sleep(connector.runtime.clock()).await;
    }
}

/// Runs statements without parameters in one message.
async fn simple(open: &PostgresRow, text: &str, limit: Moment) -> Result<Vec<SimpleQueryMessage>, Failure> {
    let running = open.client.driver.simple_query(text);
    let running = running.map(|replies| replies.map_err(|error| failed(&error, &open.server.server)));
    open.within(limit, running).await
}

fn failed(error: &tokio_postgres::Error, server: &str) -> Failure {
    if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
        let message = "a statement of the transaction failed, so nothing of it was committed; use a savepoint around a statement that may fail";
        return Failure::new(ErrorKind::Mismatch, message);
    }
    let mut failure = error::read(error, server);
    // Without the server's word nobody knows what became of the statement.
    failure.uncertain |= error.code().is_none();
    failure
}

/// Returns whether an earlier statement of the transaction had failed.
fn is_failed(failure: &Failure) -> bool {
    failure.cause.as_deref().is_some_and(|cause| cause.contains("(25P02)"))
}
