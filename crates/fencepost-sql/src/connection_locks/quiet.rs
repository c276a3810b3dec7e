//! Claims that wait without a statement at the server: a release tells them, or they try after a pause.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Name, Runtime, jitter};
use tokio::sync::Notify;

use crate::connection_locks::connection::Connection;
use crate::connection_locks::{Server, Session};

type Keys<S> = <<S as Server>::Session as Session>::Keys;

/// The claims of a client that wait quietly, by name. Clones share them.
pub struct QuietWaiters<S: Server>(pub(super) Arc<Mutex<HashMap<Name, Queue<S>>>>);

pub(super) struct Queue<S: Server> {
    keys: Keys<S>,
    last: u64,
    /// In the order of their arrival. Only the first one tries.
    pub(super) waiting: BTreeMap<u64, Arc<Notify>>,
    /// The connection on which the server knows that this client waits.
    pub(super) mark: Option<Weak<Connection<S>>>,
}

/// One claim that waits, until this is dropped.
pub(super) struct QuietWaiter<S: Server> {
    pub(super) all: QuietWaiters<S>,
    pub(super) name: Name,
    pub(super) keys: Keys<S>,
    pub(super) number: u64,
    pub(super) woken: Arc<Notify>,
    pub(super) runtime: Runtime,
    /// The claim holds the lock exclusively: it is of no use that the next one tries now.
    pub(super) is_exclusive: bool,
}

impl<S: Server> Default for QuietWaiters<S> {
    fn default() -> QuietWaiters<S> {
        QuietWaiters(Arc::default())
    }
}

impl<S: Server> Clone for QuietWaiters<S> {
    fn clone(&self) -> QuietWaiters<S> {
        QuietWaiters(Arc::clone(&self.0))
    }
}

impl<S: Server> QuietWaiters<S> {
    /// Adds a claim.
    pub(super) fn enter(&self, name: &Name, keys: &Keys<S>, runtime: &Runtime) -> QuietWaiter<S> {
        let mut all = self.0.lock();
        let new = || Queue { keys: keys.clone(), last: 0, waiting: BTreeMap::new(), mark: None };
        let queue = all.entry(name.clone()).or_insert_with(new);
        queue.last += 1;
        let (number, woken) = (queue.last, Arc::new(Notify::new()));
        queue.waiting.insert(number, Arc::clone(&woken));
        drop(all);
        QuietWaiter {
            all: self.clone(),
            name: name.clone(),
            keys: keys.clone(),
            number,
            woken,
            runtime: runtime.clone(),
            is_exclusive: false,
        }
    }

    /// Lets the first claim of a name try: a lock of it was released.
    pub(super) fn wake(&self, name: &Name) {
        if let Some(queue) = self.0.lock().get(name) {
            queue.wake();
        }
    }

    /// The same for the names whose keys are `wanted`.
    pub fn wake_all(&self, wanted: impl Fn(&Keys<S>) -> bool) {
        self.0.lock().values().filter(|queue| wanted(&queue.keys)).for_each(Queue::wake);
    }
}

impl<S: Server> Queue<S> {
    fn wake(&self) {
        if let Some(first) = self.waiting.values().next() {
            first.notify_one();
        }
    }
}

impl<S: Server> QuietWaiter<S> {
    /// Returns how long the claim waits for a message. Claims that began together do not try together.
    pub(super) fn pause(&self) -> Duration {
        jitter(2 * S::POLL, self.runtime.clock().now().as_nanos())
    }
}

impl<S: Server> Drop for QuietWaiter<S> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let Some(queue) = all.get_mut(&self.name) else { return };
        queue.waiting.remove(&self.number);
        if !queue.waiting.is_empty() {
            if !self.is_exclusive {
                queue.wake();
            }
            return;
        }
        let mark = all.remove(&self.name).and_then(|queue| queue.mark?.upgrade());
        let Some(connection) = mark else { return };
        let keys = self.keys.clone();
        self.runtime.spawn(async move { connection.unmark(&keys).await });
    }
}
