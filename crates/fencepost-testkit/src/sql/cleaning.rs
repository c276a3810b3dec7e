//! A client of an SQL engine that cleans now, and not some minutes after it was opened.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Client, Clock, Moment, Registry, Runtime, Spawner, Task};
use tokio::runtime::Handle;

/// No statement has a time limit as long as this.
const STATEMENT: Duration = Duration::from_secs(8);

/// No pause before a repeated transaction is as long as this, and no time limit as short.
const PAUSE: Duration = Duration::from_millis(500);

/// A client whose clock the test moves.
pub struct CleaningClient {
    clock: Clock,
    opened: Moment,
    client: Client,
}

/// The test's own runtime.
struct Here(Handle);

impl Spawner for Here {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

impl CleaningClient {
    /// Opens the database that a URL names.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn open(registry: &Registry, url: &str) -> CleaningClient {
        let clock = Clock::manual();
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(Here(Handle::current())));
        let client = Client::builder().runtime(runtime).connect(registry, url).await.expect("it answers");
        CleaningClient { opened: clock.now(), clock, client }
    }

    /// Returns how long ago the client was opened, by its own clock.
    pub fn elapsed(&self) -> Duration {
        self.clock.now().since(self.opened)
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Moves the time to when the client cleans next, or to a ping before that, unless a statement is under way, which would time out. Call
    /// this until the client has cleaned.
    pub fn move_on(&self) {
        self.pass(|left| left > STATEMENT);
    }

    /// The same, but not beyond `limit` after the client was opened.
    pub fn move_on_within(&self, limit: Duration) {
        let rest = limit.saturating_sub(self.elapsed());
        self.pass(|left| left > STATEMENT && left <= rest);
    }

    /// Ends a pause before a transaction is repeated.
    pub fn end_pause(&self) {
        self.pass(|left| left < PAUSE);
    }

    /// Moves the time to the next timer if that is meant.
    fn pass(&self, is_meant: impl Fn(Duration) -> bool) {
        let now = self.clock.now();
        let next = self.clock.next_timer().filter(|next| is_meant(next.since(now)));
        next.into_iter().for_each(|next| self.clock.advance_to(next));
    }

    /// Closes the client.
    pub async fn close(self) {
        self.client.close().await;
    }
}
