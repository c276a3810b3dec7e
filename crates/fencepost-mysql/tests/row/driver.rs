//! Row locks of MySQL and MariaDB as the tests of all SQL engines use them, and locks in transactions of the caller's own.

use fencepost_core::{Guard, Registry, Result, Token};
use fencepost_mysql::mysql_async::{LockOptions, lock_in, make_row};
use fencepost_testkit::needs;
use fencepost_testkit::needs::{MARIADB, Program};
use fencepost_testkit::sql::MariaDb;
use fencepost_testkit::sql::rows::{OwnLock, RowEngine, SELL};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, Transaction, TxOpts};

use crate::{server, transaction};

/// Row locks of MySQL and MariaDB.
pub(crate) struct Rows;

impl RowEngine for Rows {
    type Server = MariaDb;
    type Connection = Conn;
    type Transaction<'a> = Transaction<'a>;

    const PROGRAM: Program = MARIADB;
    const ADMINISTRATOR: &'static str = "root@";
    const MAKE_USER: &'static str = "CREATE USER app";
    const ROWS: &'static str = "fencepost_row";
    const CLAIMS: &'static str = "fencepost_row_claim";
    // The server refreshes its list only if nobody has read the list for 100 ms.
    const OPEN: &'static str = "DO SLEEP(0.12); SELECT COUNT(*) FROM information_schema.INNODB_TRX";
    const SLEEP: &'static str = "SELECT SLEEP({})";
    const PREPARE_HOLD: &'static str = "SELECT 1";
    const WAITING_COMMITS: &'static str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
        WHERE INFO = 'COMMIT' AND STATE LIKE 'Waiting for%'";
    const LEARNS_OUTCOME: bool = false;
    const SET_WAIT: &'static str = "SET SESSION innodb_lock_wait_timeout = 17";
    const SHOW_WAIT: &'static str = "SELECT CAST(@@innodb_lock_wait_timeout AS CHAR)";

    fn register(registry: Registry) -> Registry {
        fencepost_mysql::register(registry)
    }

    fn end_session(server: &MariaDb) {
        let session = server.run("SELECT connection FROM fencepost_row_claim").expect("the server answers");
        server.run(&format!("KILL {session}")).expect("it can be ended");
    }

    async fn execute(guard: &mut Guard, statement: &str) -> Result<u64, String> {
        let executed = transaction(guard).execute(statement, ()).await;
        executed.map(|executed| executed.affected_rows).map_err(|error| error.to_string())
    }

    async fn hold_commits(connection: &mut Conn) {
        connection.query_drop("FLUSH TABLES WITH READ LOCK").await.expect("it is held");
    }

    async fn free_commits(connection: &mut Conn) {
        connection.query_drop("UNLOCK TABLES").await.expect("it was held");
    }

    async fn driver(url: &str) -> Conn {
        Conn::from_url(url.replace("mariadb:", "mysql:")).await.expect("it answers")
    }

    async fn begin(connection: &mut Conn) -> Self::Transaction<'_> {
        let mut options = TxOpts::default();
        options.with_isolation_level(IsolationLevel::ReadCommitted);
        connection.start_transaction(options).await.expect("it begins")
    }

    async fn make_row(connection: &mut Conn, name: &str) -> Result<()> {
        make_row(connection, name, &LockOptions::default()).await
    }

    async fn lock_in(
        transaction: &mut Self::Transaction<'_>,
        name: &str,
        own: OwnLock,
    ) -> Result<(String, Token)> {
        let mut options = LockOptions::default();
        (options.shared, options.wait, options.table) = (own.shared, own.wait, own.table.map(str::to_owned));
        let row = lock_in(transaction, name, &options).await?;
        Ok((row.name().to_string(), row.token()))
    }

    async fn run_in(transaction: &mut Self::Transaction<'_>, statement: &str) {
        transaction.query_drop(statement).await.expect("it is open");
    }

    async fn query_in(transaction: &mut Self::Transaction<'_>, query: &str) -> String {
        transaction.query_first(query).await.expect("it is open").expect("it has a row")
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.expect("it commits");
    }

    async fn roll_back(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.expect("it can be undone");
    }
}

/// A transaction that repeats its reads sees what the last holder has written, if it locks first.
#[tokio::test]
async fn a_transaction_that_repeats_its_reads_locks_first() {
    needs!(MARIADB);
    let server = server().await;
    let (mut own, mut other) =
        (Rows::driver(&server.driver_url()).await, Rows::driver(&server.driver_url()).await);
    Rows::make_row(&mut own, "stock/42").await.expect("it is made");
    let mut holder = Rows::begin(&mut other).await;
    Rows::lock_in(&mut holder, "stock/42", OwnLock::default()).await.expect("it is free");
    Rows::run_in(&mut holder, SELL).await;
    let mut waiter = own.start_transaction(TxOpts::default()).await.expect("it begins");
    let (locked, ()) =
        tokio::join!(Rows::lock_in(&mut waiter, "stock/42", OwnLock::default()), Rows::commit(holder));
    locked.expect("it comes");
    let seen = Rows::query_in(&mut waiter, "SELECT CAST(pieces AS CHAR) FROM stock").await;
    assert_eq!((&*seen, &*server.pieces()), ("7", "7"));
    Rows::roll_back(waiter).await;
    assert_eq!(server.open(), "0");
}
