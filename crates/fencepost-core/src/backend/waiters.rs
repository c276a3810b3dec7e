//! The claims of a client to which its engine pushes news.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::sync::{Mutex, MutexGuard};

/// The news of one claim, and the waker of the task that waits for them.
///
/// News may come from any thread, before the task waits and while it asks. None of them is missed: state and waker have one lock.
#[derive(Default, Debug)]
pub struct Waiter<S>(Mutex<(S, Option<Waker>)>);

impl<S> Waiter<S> {
    /// Creates a waiter without a task.
    pub const fn new(state: S) -> Waiter<S> {
        Waiter(Mutex::new((state, None)))
    }

    /// Reads or changes the state.
    pub fn with<R>(&self, look: impl FnOnce(&mut S) -> R) -> R {
        look(&mut self.0.lock().0)
    }

    /// Changes the state, and then wakes the task.
    pub fn tell<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut inner = self.0.lock();
        let result = change(&mut inner.0);
        let waker = inner.1.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        result
    }

    /// Forgets the news and the task.
    pub fn reset(&self)
    where
        S: Default,
    {
        let before = std::mem::take(&mut *self.0.lock());
        drop(before);
    }

    /// Is ready when `is_ready` says so. Else the task of `cx` is woken by the next [`tell`](Waiter::tell).
    pub fn poll(&self, cx: &Context<'_>, is_ready: impl FnOnce(&mut S) -> bool) -> Poll<()> {
        let mut inner = self.0.lock();
        if is_ready(&mut inner.0) {
            return Poll::Ready(());
        }
        match &mut inner.1 {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// The claims of a client, found by their ids. A message of the server names a claim; its state is here.
#[derive(Debug)]
pub struct Waiters<W>([Mutex<Shard<W>>; 16]);

type Shard<W> = HashMap<ClaimId, Arc<W>, foldhash::fast::RandomState>;

impl<W> Default for Waiters<W> {
    fn default() -> Waiters<W> {
        Waiters(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<W: AsRef<Claim>> Waiters<W> {
    fn shard(&self, id: ClaimId) -> MutexGuard<'_, Shard<W>> {
        let bits = id.as_u128();
        self.0[(bits ^ (bits >> 64)) as usize % self.0.len()].lock()
    }

    /// Adds a claim, and replaces another one with its id. Add it before the first request: news may be quicker than the reply.
    pub fn insert(&self, waiter: W) -> Arc<W> {
        let waiter = Arc::new(waiter);
        let id = (*waiter).as_ref().id;
        let before = self.shard(id).insert(id, Arc::clone(&waiter));
        drop(before);
        waiter
    }

    /// Returns the claim with this id.
    pub fn get(&self, id: ClaimId) -> Option<Arc<W>> {
        self.shard(id).get(&id).cloned()
    }

    /// Removes a claim, unless another one has its id by now.
    pub fn remove(&self, waiter: &Arc<W>) {
        let id = (**waiter).as_ref().id;
        let mut shard = self.shard(id);
        if shard.get(&id).is_some_and(|found| Arc::ptr_eq(found, waiter)) {
            let removed = shard.remove(&id);
            drop(shard);
            drop(removed);
        }
    }

    /// Returns all claims.
    pub fn all(&self) -> Vec<Arc<W>> {
        let mut all = Vec::new();
        for shard in &self.0 {
            all.extend(shard.lock().values().cloned());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::backend::admission::Mode;
    use crate::backend::claim::Want;
    use crate::name::Name;
    use crate::operator::holder::HolderInfo;
    use crate::runtime::Runtime;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn news_wake_the_task_that_waits_and_are_not_missed() {
        let (waiter, wakes) = (Waiter::new(0), Arc::new(Wakes::default()));
        let waker = Waker::from(Arc::clone(&wakes));
        let poll = || waiter.poll(&Context::from_waker(&waker), |news| *news > 0);
        assert!(poll().is_pending() && poll().is_pending());
        waiter.with(|news| *news = 1);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        waiter.tell(|news| *news = 2);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        waiter.tell(|news| *news = 3);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "it has not polled since");
        assert!(poll().is_ready());
    }

    struct Tracked(Arc<Claim>);

    impl AsRef<Claim> for Tracked {
        fn as_ref(&self) -> &Claim {
            &self.0
        }
    }

    #[test]
    fn a_claim_is_found_by_its_id_until_it_is_removed() {
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
        let table = Waiters::default();
        let add = |id| {
            let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
            let ttl = Duration::from_secs(1);
            let holder = HolderInfo::labelled("me");
            let claim = Claim::new(ClaimId::from_u128(id), want, ttl, holder, runtime.clone());
            table.insert(Tracked(Arc::new(claim)))
        };
        let all: Vec<_> = (0..100).map(add).collect();
        assert_eq!(table.all().len(), 100);
        for waiter in &all {
            let found = table.get(waiter.0.id).expect("it was added");
            assert!(Arc::ptr_eq(&found, waiter));
        }
        let other = add(7);
        table.remove(&all[7]);
        assert!(table.get(other.0.id).is_some_and(|found| Arc::ptr_eq(&found, &other)), "it is the other's");
        table.remove(&other);
        assert!(table.get(other.0.id).is_none());
        assert_eq!(table.all().len(), 99);
    }
}
