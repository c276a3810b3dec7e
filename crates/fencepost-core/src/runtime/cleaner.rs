//! Cleanup that nobody waits for any more.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::runtime::spawner::{Spawner, Task};
use crate::time::Clock;

/// How long cleanups wait for each other before the host goes on with them. Their requests are on their way by then, and most have
/// their answers: so many drops in a row wake the host's thread once instead of twice each, which costs the caller more than the
/// request.
const GATHER: Duration = Duration::from_millis(2);

/// Finishes what was dropped, on the client's own thread: never on the caller's runtime, which may be gone, and never under the
/// caller's cancellation. The first poll happens at once, in the caller's `drop`, so that a request is on its way.
#[derive(Clone)]
pub struct Cleaner(Arc<Inner>);

struct Inner {
    clock: Clock,
    host: Arc<dyn Spawner>,
    pending: AtomicUsize,
    idle: Mutex<Vec<Waker>>,
    gathered: Mutex<Gathered>,
}

/// The tasks that go on.
#[derive(Default)]
struct Gathered {
    jobs: Vec<Task>,
    /// The host has been told.
    told: bool,
}

impl Cleaner {
    pub(crate) fn new(clock: Clock, host: Arc<dyn Spawner>) -> Cleaner {
        let (pending, idle, gathered) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Cleaner(Arc::new(Inner { clock, host, pending, idle, gathered }))
    }

    /// Polls `work` at once and, if it is not done by that, on the host until it is.
    pub fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        let pending = self.pending();
        let mut job: Task = Box::pin(async move {
            work.await;
            drop(pending);
        });
        if poll_once(&mut job).is_ready() {
            return;
        }
        let mut gathered = self.0.gathered();
        gathered.jobs.push(job);
        let told = std::mem::replace(&mut gathered.told, true);
        drop(gathered);
        if !told {
            let sweep = Sweep { inner: Arc::clone(&self.0), done: false };
            self.0.host.spawn(Box::pin(sweep.run()));
        }
    }

    /// How many cleanups are under way.
    pub fn backlog(&self) -> usize {
        self.0.pending.load(Ordering::SeqCst)
    }

    /// Completes when nothing is left to clean up.
    ///
    /// # Cancel safety
    /// Safe; cleanup goes on.
    pub async fn idle(&self) {
        self.0.take().into_iter().for_each(|job| self.0.host.spawn(job));
        poll_fn(|cx| {
            let mut idle = self.0.idle.lock();
            if self.backlog() == 0 {
                return Poll::Ready(());
            }
            idle.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn pending(&self) -> Pending {
        self.0.pending.fetch_add(1, Ordering::SeqCst);
        Pending(Arc::clone(&self.0))
    }
}

impl Inner {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock()
    }

    fn take(&self) -> Vec<Task> {
        let mut gathered = self.gathered();
        gathered.told = false;
        std::mem::take(&mut gathered.jobs)
    }
}

fn poll_once(job: &mut Task) -> Poll<()> {
    job.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The host goes on with what was gathered. Dropped by a host that has stopped, it lets go of it: nobody does it any more.
struct Sweep {
    inner: Arc<Inner>,
    done: bool,
}

impl Sweep {
    async fn run(mut self) {
        let clock = &self.inner.clock;
        // In a simulation time passes only when there is nothing else to do.
        let pause = if clock.is_manual() { Duration::ZERO } else { GATHER };
        clock.sleep_until(clock.now() + pause).await;
        self.done = true;
        for mut job in self.inner.take() {
            // Most have their answers, and need no task.
            if poll_once(&mut job).is_pending() {
                self.inner.host.spawn(job);
            }
        }
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if !self.done {
            drop(self.inner.take());
        }
    }
}

/// One cleanup; counted out when dropped, be it that its host stopped.
struct Pending(Arc<Inner>);

impl Drop for Pending {
    fn drop(&mut self) {
        let mut idle = self.0.idle.lock();
        if self.0.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            let wakers = std::mem::take(&mut *idle);
            drop(idle);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps its tasks until it is told to run or to drop them.
    #[derive(Default)]
    struct Held(Mutex<Vec<Task>>);

    impl Spawner for Held {
        fn spawn(&self, task: Task) {
            self.0.lock().push(task);
        }
    }

    impl Held {
        fn take(&self) -> Vec<Task> {
            std::mem::take(&mut *self.0.lock())
        }
    }

    fn cleaner() -> (Cleaner, Arc<Held>) {
        let host = Arc::new(Held::default());
        (Cleaner::new(Clock::manual(), Arc::clone(&host) as Arc<dyn Spawner>), host)
    }

    /// Pending until it has been polled so often.
    fn turns(mut left: u32) -> impl Future<Output = ()> {
        poll_fn(move |_| {
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    #[test]
    fn the_host_is_told_once_and_gets_what_is_not_done() {
        let (cleaner, host) = cleaner();
        for turns_needed in [1, 2, 2, 3] {
            cleaner.finish(turns(turns_needed));
        }
        assert_eq!(cleaner.backlog(), 3, "the first was done at once");
        let mut told = host.take();
        assert_eq!(told.len(), 1);
        assert!(poll_once(&mut told[0]).is_ready());
        assert_eq!(cleaner.backlog(), 1, "two had their answers");
        let mut rest = host.take();
        assert_eq!(rest.len(), 1);
        cleaner.finish(turns(2));
        drop(told);
        assert_eq!(cleaner.backlog(), 2, "what came since is the next turn's");
        assert!(poll_once(&mut rest[0]).is_ready());
        assert!(poll_once(&mut host.take()[0]).is_ready());
        assert_eq!(cleaner.backlog(), 0);
    }

    #[test]
    fn who_waits_for_it_hurries_it() {
        let (cleaner, host) = cleaner();
        cleaner.finish(turns(2));
        let mut idle = Box::pin(cleaner.idle());
        let (flag, waker) = crate::testing::flag();
        assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let [_, job] = &mut host.take()[..] else { panic!("the job itself is the host's now") };
        assert!(poll_once(job).is_ready());
        assert!(flag.is_set());
        assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn a_host_that_stops_leaves_no_backlog() {
        let (cleaner, host) = cleaner();
        cleaner.finish(turns(2));
        drop(host.take());
        assert_eq!(cleaner.backlog(), 0);
    }
}
