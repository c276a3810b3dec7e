//! The tests of a lease table whose rows an operator changes by hand. Each SQL engine passes them.

use std::time::Duration;

use fencepost_core::{Client, Guard, Loss, Registry, Result, State, Token};

use super::Runs;
use crate::wait::{Stalls, eventually};

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The length of a lease whose renewal is waited for: it comes each 2 s.
const TTL: Duration = Duration::from_secs(6);

/// The length of a lease that lasts for the whole test.
const LONG: Duration = Duration::from_secs(600);

/// A server with a lease table.
pub struct DeletedRows<'a, S> {
    /// The server.
    pub server: &'a S,
    /// The engine.
    pub registry: &'a Registry,
    /// The URL of the table, with `mode=table`.
    pub url: &'a str,
}

impl<S: Runs> DeletedRows<'_, S> {
    async fn connect(&self, ttl: Duration) -> Client {
        let builder = Client::builder().ttl(ttl).attempt_timeout(SOON).release_timeout(SOON);
        builder.connect(self.registry, self.url).await.expect("it answers")
    }

    fn run(&self, statement: &str) {
        self.server.run(statement).expect("the server answers");
    }

    /// Each way in which an operator frees a lock without fencepost: the next renewal tells its holder, and no other.
    pub async fn holders_are_told_by_their_next_renewal(&self) {
        let client = self.connect(TTL).await;
        let mut stalls = Stalls::default();
        while stalls.spoilt(self.are_told(&client).await) {}
        client.close().await;
    }

    async fn are_told(&self, client: &Client) -> Result<()> {
        let other = client.mutex("other").expect("a good name").lock().await?;
        for statement in [
            "DELETE FROM fencepost_lock WHERE name = 'lock'",
            "UPDATE fencepost_lock SET owner = NULL WHERE name = 'lock'",
            "UPDATE fencepost_lock SET owner = 'nobody', session = NULL, expires = modified WHERE name = 'lock'",
        ] {
            let guard = client.mutex("lock").expect("a good name").lock().await?;
            self.run(statement);
            told(&guard, statement).await?;
        }
        // Readers that hold together, and the claim that waits for them, have rows in the queue.
        let lock = client.rwlock("read").expect("a good name");
        let (first, second) = (lock.read().await?, lock.read().await?);
        self.run(&format!("DELETE FROM fencepost_lock_queue WHERE token = {}", first.token()));
        told(&first, "a reader's row is deleted").await?;
        for guard in [&second, &other] {
            assert_ne!(guard.state(), State::Lost(Loss::Deleted), "its row is there");
            guard.ensure_held()?;
        }
        drop(second);
        other.release().await
    }

    /// A name whose rows are deleted goes on with greater tokens, whatever statement deletes them.
    pub async fn tokens_never_begin_again(&self) {
        let client = self.connect(LONG).await;
        let mutex = client.mutex("lock").expect("a good name");
        let mut last = Token::default();
        for statement in [
            "DELETE FROM fencepost_lock WHERE name = 'lock'",
            "DELETE FROM fencepost_lock",
            "TRUNCATE TABLE fencepost_lock",
            "UPDATE fencepost_lock SET token = 0",
        ] {
            for _ in 0..3 {
                let guard = mutex.lock().await.expect("it is free");
                assert!(guard.token() > last, "{} after {last}: {statement}", guard.token());
                last = guard.token();
                guard.release().await.expect("it was held");
            }
            self.run(statement);
            // A reader's grant takes several statements.
            let guard = client.rwlock("lock").expect("a good name").read().await.expect("it is free");
            assert!(guard.token() > last, "{} after {last}: {statement}", guard.token());
            last = guard.token();
            guard.release().await.expect("it was held");
            self.run(statement);
        }
        client.close().await;
    }

    /// The row of a name is deleted while readers hold it by rows of the queue: no writer is granted beside them, and none passes a waiter.
    pub async fn readers_and_waiters_outlive_the_row_of_their_name(&self) {
        let (one, two) = (self.connect(LONG).await, self.connect(LONG).await);
        let delete = "DELETE FROM fencepost_lock WHERE name = 'lock'";
        let (lock, theirs) =
            (one.rwlock("lock").expect("a good name"), two.mutex("lock").expect("a good name"));
        let reader = lock.read().await.expect("it is free");
        self.run(delete);
        assert!(
            theirs.try_lock().await.expect("it answers").is_none(),
            "a writer was granted beside a reader"
        );
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.write().await }
        });
        eventually(SOON, "it waits", || async {
            one.inspect("lock").await.is_ok_and(|info| info.waiters().count() == 1)
        })
        .await;
        self.run(delete);
        assert!(
            theirs.try_lock().await.expect("it answers").is_none(),
            "a newcomer was granted beside a reader"
        );
        reader.ensure_held().expect("its row is there");
        reader.release().await.expect("it was held");
        let next = tokio::time::timeout(SOON, waiting).await.expect("it is granted").expect("no panic");
        next.expect("granted").release().await.expect("it was held");
        one.close().await;
        two.close().await;
    }
}

/// Only a renewal gives this reason. On a machine that stalls the lease may end before its renewal.
async fn told(guard: &Guard, what: &str) -> Result<()> {
    match tokio::time::timeout(SOON, guard.lost()).await.expect("it is told") {
        Loss::Expired => guard.ensure_held(),
        loss => {
            assert_eq!(loss, Loss::Deleted, "{what}");
            Ok(())
        }
    }
}
