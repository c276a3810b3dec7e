//! PostgreSQL: advisory locks.

use super::{ByHand, Cycle, Sql, Way};
use fencepost_testkit::sql::Postgres;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tokio_postgres::{Client, NoTls, Statement};

impl Sql for Postgres {
    const ENGINE: &'static str = "postgres";
    const CONNECTIONS: &'static str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost_%'";
    const LOCKS: &'static str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    // A session knows its own alone.
    const STATEMENTS: &'static str = "SELECT 0";
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

    async fn stranger(url: &str) -> Option<Box<dyn Any>> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(Box::new(client))
    }
}

/// A connection with the statements of a lock.
#[derive(Clone)]
pub(crate) struct Hand {
    client: Arc<Client>,
    attempt: Statement,
    give_back: Statement,
    wait: Statement,
    release: Statement,
}

/// The table of leases.
const TABLE: &str = "CREATE SCHEMA IF NOT EXISTS fencepost; CREATE SEQUENCE IF NOT EXISTS fencepost.token; \
    CREATE TABLE IF NOT EXISTS by_hand (name int8 PRIMARY KEY, owner int8 NOT NULL, token int8 NOT NULL, \
    expires timestamptz NOT NULL); \
    INSERT INTO by_hand SELECT n, 0, 0, now() FROM generate_series(0, 100) AS n ON CONFLICT DO NOTHING";

const RELEASE: &str = "SELECT pg_advisory_unlock($1)";

impl ByHand for Hand {
    async fn connect(url: &str, way: Way) -> Hand {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server that answers");
        tokio::spawn(connection);
        if way != Way::Session {
            client.batch_execute(TABLE).await.expect("a table");
        }
        let prepare = async |text: &str| client.prepare(text).await.expect("a statement");
        let [attempt, give_back] = match way {
            Way::Session => [
                "SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval(to_regclass('fencepost.token')) END",
                RELEASE,
            ],
            Way::Lease => [
                "INSERT INTO by_hand AS held VALUES ($1, 7, 1, clock_timestamp() + interval '30s') \
                 ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = held.token + 1, \
                 expires = excluded.expires WHERE held.expires <= clock_timestamp() RETURNING token",
                "UPDATE by_hand SET expires = clock_timestamp() WHERE name = $1 AND owner = 7 RETURNING true",
            ],
        };
        let (attempt, give_back) = (prepare(attempt).await, prepare(give_back).await);
        let wait = "SELECT pg_advisory_lock($1) IS NULL, nextval(to_regclass('fencepost.token'))";
        let (wait, release) = (prepare(wait).await, prepare(RELEASE).await);
        Hand { client: Arc::new(client), attempt, give_back, wait, release }
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

impl Cycle for Hand {
    async fn cycle(&mut self, key: usize) {
        let row =
            self.client.query_one(&self.attempt, &[&(key as i64)]).await.expect("a server that answers");
        assert!(row.get::<_, Option<i64>>(0).is_some(), "it is free");
        let row = self.client.query_one(&self.give_back, &[&(key as i64)]).await;
        assert!(row.expect("a server that answers").get::<_, bool>(0), "it was held");
    }
}
