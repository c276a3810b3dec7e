//! Claims that wait without a statement at the server: a release tells them by `NOTIFY`, and then they try. No snapshot is held.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Mode, Runtime, jitter};
use tokio::sync::Notify;

use crate::claim::attempt::{FreshGrant, try_lock};
use crate::client::PostgresClient;
use crate::conn::connection::Connection;
use crate::error::Failure;
use crate::keys::{Keys, Lock};

/// How long a claim waits at most for a message before it tries again: from once to twice this time. A holder that dies sends none.
const POLL: Duration = Duration::from_millis(250);

/// How often a mark is tried: a release tests it for a moment.
const MARK_ATTEMPTS: u32 = 20;

/// The claims of a client that wait for messages, by the key of their name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct QuietWaiters(Arc<Mutex<HashMap<i64, Queue>>>);

#[derive(Default)]
struct Queue {
    last: u64,
    /// In the order of their arrival. Only the first one tries.
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// The connection on which the server knows that this client waits.
    mark: Option<Weak<Connection>>,
}

/// One claim that waits, until this is dropped.
pub(crate) struct Waiter {
    all: QuietWaiters,
    keys: Keys,
    number: u64,
    pub(crate) woken: Arc<Notify>,
    runtime: Runtime,
    /// The claim holds the lock exclusively: it is of no use that the next one tries now.
    is_exclusive: bool,
}

impl QuietWaiters {
    /// Adds a claim.
    pub(crate) fn enter(&self, keys: Keys, runtime: &Runtime) -> Waiter {
        let mut all = self.0.lock();
        let queue = all.entry(keys.name).or_default();
        queue.last += 1;
        let (number, woken) = (queue.last, Arc::new(Notify::new()));
        queue.waiting.insert(number, Arc::clone(&woken));
        drop(all);
        Waiter { all: self.clone(), keys, number, woken, runtime: runtime.clone(), is_exclusive: false }
    }

    /// Lets the first claim of a key try: the key was released.
    pub(crate) fn wake(&self, key: i64) {
        if let Some(queue) = self.0.lock().get(&key)
            && let Some(first) = queue.waiting.values().next()
        {
            first.notify_one();
        }
    }
}

impl Waiter {
    /// Tries if this is the first claim. Run this to its end.
    pub(crate) async fn attempt(
        &mut self,
        client: &Arc<PostgresClient>,
        claim: &Claim,
        lock: Lock,
    ) -> Result<Option<FreshGrant>, Failure> {
        let first =
            self.all.0.lock().get(&self.keys.name).and_then(|queue| queue.waiting.keys().next().copied());
        if first != Some(self.number) {
            return Ok(None);
        }
        self.mark(client, claim).await?;
        let grant = try_lock(client, claim, lock).await?;
        self.is_exclusive = grant.is_some() && lock.mode == Mode::Exclusive;
        Ok(grant)
    }

    /// Notes at the server that this client waits, before the claim tries: each later release sends a message.
    async fn mark(&self, client: &Arc<PostgresClient>, claim: &Claim) -> Result<(), Failure> {
        let known = {
            let all = self.all.0.lock();
            all.get(&self.keys.name).and_then(|queue| queue.mark.as_ref()).and_then(Weak::upgrade)
        };
        if known.is_some_and(|connection| !connection.has_ended()) {
            return Ok(());
        }
        let connection = client.pool.holding(claim.ttl()).await?;
        let clock = self.runtime.clock();
        for _ in 0..MARK_ATTEMPTS {
            match connection.mark(self.keys.waiting).await {
                Ok(true) => {
                    if let Some(queue) = self.all.0.lock().get_mut(&self.keys.name) {
                        queue.mark = Some(Arc::downgrade(&connection));
                    }
                    return Ok(());
                }
                Ok(false) => clock.sleep_until(clock.now() + Duration::from_millis(1)).await,
                Err(failure) => {
                    connection.unmark(self.keys.waiting).await;
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Returns how long the claim waits for a message. Claims that began together do not try together.
    pub(crate) fn pause(&self) -> Duration {
        jitter(2 * POLL, self.runtime.clock().now().as_nanos())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let Some(queue) = all.get_mut(&self.keys.name) else { return };
        queue.waiting.remove(&self.number);
        match queue.waiting.values().next() {
            Some(next) if !self.is_exclusive => next.notify_one(),
            Some(_) => {}
            None => {
                let mark = all.remove(&self.keys.name).and_then(|queue| queue.mark?.upgrade());
                let Some(connection) = mark else { return };
                let key = self.keys.waiting;
                self.runtime.spawn(async move { connection.unmark(key).await });
            }
        }
    }
}
