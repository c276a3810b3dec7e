//! The floor: the same statements over the bare driver, with the same form of token.

use tokio_postgres::{Client, NoTls, Statement};

/// A connection with the statements of a lock.
pub(super) struct ByHand {
    client: Client,
    attempt: Statement,
    wait: Statement,
    release: Statement,
}

impl ByHand {
    /// Connects. The driver's task runs in the caller's runtime.
    pub(super) async fn connect(url: &str) -> ByHand {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server that answers");
        tokio::spawn(connection);
        let prepare = async |text: &str| client.prepare(text).await.expect("a statement");
        let attempt =
            "SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval(to_regclass('fencepost.token')) END";
        let attempt = prepare(attempt).await;
        let wait = "SELECT pg_advisory_lock($1) IS NULL, nextval(to_regclass('fencepost.token'))";
        let wait = prepare(wait).await;
        let release = prepare("SELECT pg_advisory_unlock($1)").await;
        ByHand { client, attempt, wait, release }
    }

    /// Takes a lock that nobody else wants, and releases it.
    pub(super) async fn cycle(&self, key: i64) {
        let row = self.client.query_one(&self.attempt, &[&key]).await.expect("a server that answers");
        assert!(row.get::<_, Option<i64>>(0).is_some(), "it is free");
        self.release(key).await;
    }

    /// Waits for a lock in the server's queue.
    pub(super) async fn lock(&self, key: i64) {
        self.client.query_one(&self.wait, &[&key]).await.expect("a server that answers");
    }

    /// Releases it.
    pub(super) async fn release(&self, key: i64) {
        let row = self.client.query_one(&self.release, &[&key]).await.expect("a server that answers");
        assert!(row.get::<_, bool>(0), "it was held");
    }
}
