//! Work that the client does at a moment, unless it is taken back before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::time::{DueKey, DueQueue, Moment};

/// Work to be done. It must not block.
type Work = Box<dyn FnOnce() + Send>;

/// The works of one client, and the one task that does them.
#[derive(Clone)]
pub(crate) struct Deadlines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    due: Mutex<DueQueue<Work>>,
    count: AtomicU64,
}

impl Deadlines {
    pub(crate) fn start(runtime: &Runtime) -> Deadlines {
        let deadlines = Deadlines(Arc::default());
        let (weak, clock) = (Arc::downgrade(&deadlines.0), runtime.clock().clone());
        runtime.spawn(async move {
            while let Some(shared) =
                clock.next_due(&weak, |shared, waker| shared.due.lock().plan(waker)).await
            {
                let due = shared.due.lock().take_due(clock.now());
                due.into_values().for_each(|work| work());
            }
        });
        deadlines
    }

    /// Does this at `at`.
    pub(crate) fn add(&self, at: Moment, work: Work) -> DueKey {
        let key = (at, self.0.count.fetch_add(1, Ordering::Relaxed));
        self.0.due.lock().insert(key, work);
        key
    }

    /// Takes it back, unless it is done.
    pub(crate) fn remove(&self, key: DueKey) {
        // Dropped after the queue is free again: it may own a guard.
        let work = self.0.due.lock().remove(key);
        drop(work);
    }

    /// Drops all of them undone.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.due.lock());
        drop(all);
    }
}
