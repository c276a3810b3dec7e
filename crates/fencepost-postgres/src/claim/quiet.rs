//! Claims that wait without a statement at the server: a release tells them by `NOTIFY`, and then they try. No snapshot is held.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Runtime, jitter};
use tokio::sync::Notify;

use crate::conn::connection::Connection;
use crate::keys::Keys;

/// How long a claim waits at most for a message before it tries again: from once to twice this time. A holder that dies sends none.
const POLL: Duration = Duration::from_millis(250);

/// The claims of a client that wait for messages, by the key of their name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct QuietWaiters(pub(super) Arc<Mutex<HashMap<i64, Queue>>>);

#[derive(Default)]
pub(super) struct Queue {
    last: u64,
    /// In the order of their arrival. Only the first one tries.
    pub(super) waiting: BTreeMap<u64, Arc<Notify>>,
    /// The connection on which the server knows that this client waits.
    pub(super) mark: Option<Weak<Connection>>,
}

/// One claim that waits, until this is dropped.
pub(crate) struct Waiter {
    pub(super) all: QuietWaiters,
    pub(super) keys: Keys,
    pub(super) number: u64,
    pub(crate) woken: Arc<Notify>,
    pub(super) runtime: Runtime,
    /// The claim holds the lock exclusively: it is of no use that the next one tries now.
    pub(super) is_exclusive: bool,
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
