//! Row locks of PostgreSQL as the tests of all SQL engines use them, and locks in transactions of the caller's own.

use fencepost_core::{Guard, Registry, Result, Token};
use fencepost_postgres::tokio_postgres::{LockOptions, lock_in, make_row};
use fencepost_testkit::needs;
use fencepost_testkit::needs::{POSTGRES, Program};
use fencepost_testkit::sql::Postgres;
use fencepost_testkit::sql::rows::{OwnLock, RowEngine};
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

use crate::{server, transaction};

/// Row locks of PostgreSQL.
pub(crate) struct Rows;

impl RowEngine for Rows {
    type Server = Postgres;
    type Connection = Client;
    type Transaction<'a> = Transaction<'a>;

    const PROGRAM: Program = POSTGRES;
    const ADMINISTRATOR: &'static str = "fencepost@";
    const MAKE_USER: &'static str = "CREATE ROLE app LOGIN";
    const ROWS: &'static str = "fencepost.row";
    const CLAIMS: &'static str = "fencepost.row_claim";
    const OPEN: &'static str = "SELECT count(*) FROM pg_stat_activity \
        WHERE application_name LIKE 'fencepost_%' AND xact_start IS NOT NULL";
    const SLEEP: &'static str = "SELECT pg_sleep({})";
    // A trigger waits for an advisory lock at the end of the transaction.
    const PREPARE_HOLD: &'static str = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'; \
        CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED \
        FOR EACH ROW EXECUTE FUNCTION hold()";
    const WAITING_COMMITS: &'static str =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'";
    const LEARNS_OUTCOME: bool = true;
    const SET_WAIT: &'static str = "SET LOCAL lock_timeout = '17s'";
    const SHOW_WAIT: &'static str = "SHOW lock_timeout";

    fn register(registry: Registry) -> Registry {
        fencepost_postgres::register(registry)
    }

    fn end_session(server: &Postgres) {
        let end = "SELECT pg_terminate_backend(connection::int4) FROM fencepost.row_claim";
        server.run(end).expect("it can be ended");
    }

    async fn execute(guard: &mut Guard, statement: &str) -> Result<u64, String> {
        let executed = transaction(guard).client().execute(statement, &[]).await;
        executed.map_err(|error| error.to_string())
    }

    async fn hold_commits(client: &mut Client) {
        client.batch_execute("SELECT pg_advisory_lock(1)").await.expect("it is free");
    }

    async fn free_commits(client: &mut Client) {
        client.batch_execute("SELECT pg_advisory_unlock(1)").await.expect("it was held");
    }

    async fn driver(url: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it answers");
        tokio::spawn(connection);
        client
    }

    async fn begin(client: &mut Client) -> Self::Transaction<'_> {
        client.transaction().await.expect("it begins")
    }

    async fn make_row(client: &mut Client, name: &str) -> Result<()> {
        make_row(client, name, &LockOptions::default()).await
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
        transaction.batch_execute(statement).await.expect("it is open");
    }

    async fn query_in(transaction: &mut Self::Transaction<'_>, query: &str) -> String {
        transaction.query_one(query, &[]).await.expect("it is open").get(0)
    }

    async fn commit(transaction: Self::Transaction<'_>) {
        transaction.commit().await.expect("it commits");
    }

    async fn roll_back(transaction: Self::Transaction<'_>) {
        transaction.rollback().await.expect("it can be undone");
    }
}

#[tokio::test]
async fn a_transaction_that_sees_old_data_is_refused() {
    needs!(POSTGRES);
    let server = server().await;
    let mut own = Rows::driver(&server.driver_url()).await;
    Rows::make_row(&mut own, "new").await.expect("it is made");
    let builder = own.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let mut transaction = builder.start().await.expect("it begins");
    let error =
        Rows::lock_in(&mut transaction, "new", OwnLock::default()).await.expect_err("it reads old data");
    assert!(error.is_configuration() && error.to_string().contains("READ COMMITTED"), "{error}");
}
