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
    due: Mutex<Due>,
    count: AtomicU64,
}

#[derive(Default)]
struct Due {
    works: DueQueue<Work>,
    /// The client is closed, and no work is done any more.
    closed: bool,
}

impl Deadlines {
    pub(crate) fn start(runtime: &Runtime) -> Deadlines {
        let deadlines = Deadlines(Arc::default());
        let (weak, clock) = (Arc::downgrade(&deadlines.0), runtime.clock().clone());
        runtime.spawn(async move {
            while let Some(shared) =
                clock.next_due(&weak, |shared, waker| shared.due.lock().works.plan(waker)).await
            {
                let due = shared.due.lock().works.take_due(clock.now());
                due.into_values().for_each(|work| work());
            }
        });
        deadlines
    }

    /// Does this at `at`. Drops it undone if the client is closed.
    pub(crate) fn add(&self, at: Moment, work: Work) -> DueKey {
        let key = (at, self.0.count.fetch_add(1, Ordering::Relaxed));
        let mut due = self.0.due.lock();
        if due.closed {
            drop(due);
            // Dropped when the queue is free again: it may own a guard.
            drop(work);
        } else {
            due.works.insert(key, work);
        }
        key
    }

    /// Takes it back, unless it is done.
    pub(crate) fn remove(&self, key: DueKey) {
        // Dropped after the queue is free again: it may own a guard.
        let work = self.0.due.lock().works.remove(key);
        drop(work);
    }

    /// Drops all of them undone, and all that are added later.
    pub(crate) fn close(&self) {
        let mut due = self.0.due.lock();
        due.closed = true;
        let all = std::mem::take(&mut due.works);
        drop(due);
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    /// It may own the client, which would never be dropped.
    #[test]
    fn a_work_that_is_added_after_the_close_is_dropped() {
        let (clock, owned) = (Clock::manual(), Arc::new(()));
        let deadlines = Deadlines::start(&Runtime::for_client(1, clock.clone(), Arc::new(NoTasks)));
        let add = || {
            let owned = Arc::clone(&owned);
            deadlines.add(clock.now() + Duration::from_secs(1), Box::new(move || drop(owned)))
        };
        add();
        assert_eq!(Arc::strong_count(&owned), 2);
        deadlines.close();
        assert_eq!(Arc::strong_count(&owned), 1);
        add();
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}
