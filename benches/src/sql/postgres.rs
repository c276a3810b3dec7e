//! PostgreSQL: advisory locks.

use super::{ByHand, Sql};
use fencepost_testkit::sql::Postgres;
use std::time::Instant;
use tokio_postgres::{Client, NoTls, Statement};

impl Sql for Postgres {
    const ENGINE: &'static str = "postgres";
    const CONNECTIONS: &'static str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost_%'";
    const LOCKS: &'static str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    type Hand = Hand;

    fn run(&self, statements: &str) -> String {
        self.run(statements).expect("a server that answers")
    }

    fn needs_schema(_: &str) -> bool {
        true
    }

    fn statements(&self, work: impl FnOnce()) -> usize {
        Sql::run(self, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
        Sql::run(self, "SELECT pg_stat_statements_reset()");
        work();
        let count = "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";
        Sql::run(self, count).trim().parse().expect("a number")
    }

    fn end_sessions(&self) {
        let some = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
            WHERE application_name LIKE 'fencepost_%' AND random() < 0.3";
        Sql::run(self, some);
    }
}

/// A connection with the statements of a lock.
pub(crate) struct Hand {
    client: Client,
    attempt: Statement,
    wait: Statement,
    release: Statement,
}

impl ByHand for Hand {
    async fn connect(url: &str) -> Hand {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server that answers");
        tokio::spawn(connection);
        let prepare = async |text: &str| client.prepare(text).await.expect("a statement");
        let attempt =
            "SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval(to_regclass('fencepost.token')) END";
        let attempt = prepare(attempt).await;
        let wait = "SELECT pg_advisory_lock($1) IS NULL, nextval(to_regclass('fencepost.token'))";
        let wait = prepare(wait).await;
        let release = prepare("SELECT pg_advisory_unlock($1)").await;
        Hand { client, attempt, wait, release }
    }

    async fn cycle(&self, key: usize) {
        let row =
            self.client.query_one(&self.attempt, &[&(key as i64)]).await.expect("a server that answers");
        assert!(row.get::<_, Option<i64>>(0).is_some(), "it is free");
        self.release(key).await;
    }

    async fn lock(&self, key: usize) {
        self.client.query_one(&self.wait, &[&(key as i64)]).await.expect("a server that answers");
    }

    async fn release(&self, key: usize) {
        let row =
            self.client.query_one(&self.release, &[&(key as i64)]).await.expect("a server that answers");
        assert!(row.get::<_, bool>(0), "it was held");
    }

    async fn end_holder(&self) -> Instant {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
        let began = Instant::now();
        self.client.simple_query(end).await.expect("a server that answers");
        began
    }
}
