//! The clock of a client.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::{Either, select};

use crate::sync::{Mutex, MutexGuard};
use crate::time::due_queue::{DueKey, DueQueue};
use crate::time::moment::Moment;

/// The clock of a client and the timers set on it. Clones share both.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    /// Tells the process that made the clock from one that was forked off it.
    fork: forkguard::Guard,
    source: Source,
    schedule: Mutex<Schedule>,
    /// Its client is being closed, or is closed.
    closed: AtomicBool,
}

enum Source {
    /// `CLOCK_BOOTTIME`.
    Boot,
    /// Stands still until moved; `wall` is microseconds since 1970.
    Manual { now: AtomicU64, wall: AtomicI64 },
}

#[derive(Default)]
struct Schedule {
    /// Its task is the driver, which re-arms when it is woken.
    timers: DueQueue<Waker>,
    /// The number of timers that were set.
    count: u64,
    /// Nobody drives this clock any more: timers fire at once.
    stopped: bool,
}

impl Clock {
    /// `CLOCK_BOOTTIME`. Timers fire only while somebody calls [`Clock::poll_drive`] (the client's thread does that).
    pub fn boot() -> Clock {
        Clock::with(Source::Boot)
    }

    /// A clock for tests: it starts at 1,000 s and stands still until [`advance_to`](Clock::advance_to).
    pub fn manual() -> Clock {
        let source = Source::Manual {
            now: AtomicU64::new(1_000_000_000_000),
            wall: AtomicI64::new(1_700_000_000_000_000),
        };
        Clock::with(source)
    }

    fn with(source: Source) -> Clock {
        let (fork, schedule, closed) = (forkguard::new(), Mutex::default(), AtomicBool::new(false));
        Clock(Arc::new(Inner { fork, source, schedule, closed }))
    }

    /// Returns whether this process was forked off the one that made the clock. The client of that process does nothing here.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.fork.clone().detected_fork()
    }

    /// The moment now.
    pub fn now(&self) -> Moment {
        match &self.0.source {
            Source::Boot => boot_now(),
            Source::Manual { now, .. } => Moment::from_nanos(now.load(Ordering::SeqCst)),
        }
    }

    /// The wall clock in microseconds since 1970. It may step in either direction: never a deadline, only something
    /// to show, and the base of tokens.
    pub fn wall_micros(&self) -> u64 {
        match &self.0.source {
            Source::Boot => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            }
            Source::Manual { wall, .. } => u64::try_from(wall.load(Ordering::SeqCst)).unwrap_or(0),
        }
    }

    /// Is this a clock that a test moves?
    pub fn is_manual(&self) -> bool {
        matches!(self.0.source, Source::Manual { .. })
    }

    /// Moves a manual clock to `to` (never back) and fires what is due by then. Does nothing on a real clock.
    pub fn advance_to(&self, to: Moment) {
        if let Source::Manual { now, wall } = &self.0.source {
            let before = now.fetch_max(to.as_nanos(), Ordering::SeqCst);
            wall.fetch_add((to.as_nanos().saturating_sub(before) / 1_000) as i64, Ordering::SeqCst);
            self.fire();
        }
    }

    /// Steps a manual clock's wall time by `micros`, in either direction. Does nothing on a real clock.
    pub fn step_wall(&self, micros: i64) {
        if let Source::Manual { wall, .. } = &self.0.source {
            wall.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Moment> {
        Some(self.schedule().timers.first()).filter(|at| *at != Moment::NEVER)
    }

    /// Returns how many timers are set.
    #[cfg(test)]
    pub(crate) fn timer_count(&self) -> usize {
        self.schedule().timers.items().count()
    }

    /// Completes at `at`. Dropping it takes the timer back.
    ///
    /// # Cancel safety
    /// May be dropped and made again at any time.
    pub fn sleep_until(&self, at: Moment) -> Sleep {
        Sleep { clock: self.clone(), at, set: None }
    }

    /// `work`, or `None` when `until` comes first. A result that is ready at `until` wins.
    ///
    /// # Cancel safety
    /// That of `work`.
    pub async fn within<T>(&self, until: Moment, work: impl Future<Output = T>) -> Option<T> {
        match select(std::pin::pin!(work), self.sleep_until(until)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// Completes when the next item of `owner`'s queue is due; `plan` calls [`DueQueue::plan`]. Returns `None` once the owner is dropped.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn next_due<S>(&self, owner: &Weak<S>, plan: impl Fn(&S, &Waker) -> Moment) -> Option<Arc<S>> {
        let mut sleep: Option<Sleep> = None;
        std::future::poll_fn(|cx| {
            let Some(owner) = owner.upgrade() else { return Poll::Ready(None) };
            let first = plan(&owner, cx.waker());
            let sleep = match &mut sleep {
                Some(sleep) if sleep.at == first => sleep,
                other => other.insert(self.sleep_until(first)),
            };
            Pin::new(sleep).poll(cx).map(|()| Some(owner))
        })
        .await
    }

    /// Wakes `waker` once at `at`; early when the clock stops, so that its user can look for another clock.
    pub fn alarm(&self, at: Moment, waker: Waker) {
        let mut schedule = self.schedule();
        if schedule.stopped {
            drop(schedule);
            waker.wake();
            return;
        }
        schedule.insert(at, waker);
    }

    /// Fires what is due and answers with the next moment at which something will be.
    pub fn fire(&self) -> Option<Moment> {
        loop {
            let now = self.now();
            let mut schedule = self.schedule();
            let first = schedule.timers.first();
            if first > now {
                return Some(first).filter(|at| *at != Moment::NEVER);
            }
            let due = schedule.timers.take_due(now);
            drop(schedule);
            due.into_values().for_each(Waker::wake);
        }
    }

    /// Polls the driver of the timers: fires what is due and answers with the moment to call again at; `cx` is
    /// woken when that moment moves forward.
    pub fn poll_drive(&self, cx: &mut Context<'_>) -> Option<Moment> {
        // One that is set while others fire, and is due already, makes the driver come again at once.
        self.schedule().timers.plan(cx.waker());
        self.fire();
        Some(self.schedule().timers.plan(cx.waker())).filter(|at| *at != Moment::NEVER)
    }

    /// Its client is being closed: the holders of its grants are told. The timers go on.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Wakes each task that sleeps, so that it looks again whether something else has happened that it waits for. No timer ends by this.
    pub fn wake_all(&self) {
        if self.is_forked() {
            // A thread that is not there may have the lock.
            return;
        }
        let all = self.schedule().timers.items().cloned().collect::<Vec<Waker>>();
        all.into_iter().for_each(Waker::wake);
    }

    /// Returns whether its client is being closed, or is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }

    /// Nobody will drive the timers any more: all of them fire now, and so does every later one.
    pub fn stop(&self) {
        let all = {
            let mut schedule = self.schedule();
            schedule.stopped = true;
            schedule.timers.take_due(Moment::NEVER)
        };
        all.into_values().for_each(Waker::wake);
    }

    /// Does nobody drive the timers any more?
    pub fn is_stopped(&self) -> bool {
        self.schedule().stopped
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.0.schedule.lock()
    }
}

impl Schedule {
    fn insert(&mut self, at: Moment, waker: Waker) -> DueKey {
        self.count += 1;
        let key = (at, self.count);
        self.timers.insert(key, waker);
        key
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_manual() { "manual" } else { "boot" };
        write!(f, "Clock({kind}, {:?})", self.now())
    }
}

fn boot_now() -> Moment {
    use nix::time::{ClockId, clock_gettime};
    // Linux always has CLOCK_BOOTTIME (since 2.6.39); where it is missing, the monotonic clock is what there is.
    #[cfg(all(target_os = "linux", not(fencepost_portable)))]
    const SOURCE: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(any(not(target_os = "linux"), fencepost_portable))]
    const SOURCE: ClockId = ClockId::CLOCK_MONOTONIC;
    let t = clock_gettime(SOURCE).expect("the system has no monotonic clock");
    Moment::from_nanos(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// A future that completes at a moment: see [`Clock::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    clock: Clock,
    at: Moment,
    set: Option<DueKey>,
}

impl Sleep {
    fn unset(&mut self) {
        // In a forked process a thread that is not there may have the lock.
        if let Some(key) = self.set.take().filter(|_| !self.clock.is_forked()) {
            self.clock.schedule().timers.remove(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at == Moment::NEVER {
            return Poll::Pending;
        }
        if self.clock.now() >= self.at {
            self.unset();
            return Poll::Ready(());
        }
        let clock = self.clock.clone();
        let mut schedule = clock.schedule();
        if let Some(waker) = self.set.and_then(|key| schedule.timers.get_mut(key)) {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        if schedule.stopped {
            // The client's thread is gone: answer "time is over" rather than never.
            return Poll::Ready(());
        }
        self.set = Some(schedule.insert(self.at, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.unset();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn poll(sleep: &mut Sleep) -> Poll<()> {
        Pin::new(sleep).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_sleep_ends_when_its_moment_comes_and_leaves_no_timer() {
        let clock = Clock::manual();
        let at = clock.now() + Duration::from_secs(5);
        let mut sleep = clock.sleep_until(at);
        assert!(poll(&mut sleep).is_pending());
        assert_eq!(clock.next_timer(), Some(at));
        clock.advance_to(at.less(Duration::from_nanos(1)));
        assert!(poll(&mut sleep).is_pending());
        clock.advance_to(at);
        assert!(poll(&mut sleep).is_ready());
        assert_eq!(clock.next_timer(), None);
    }

    #[test]
    fn a_dropped_sleep_takes_its_timer_back() {
        let clock = Clock::manual();
        let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(5));
        assert!(poll(&mut sleep).is_pending());
        drop(sleep);
        assert_eq!(clock.next_timer(), None);
    }

    #[test]
    fn a_sleep_that_is_dropped_in_a_forked_child_waits_for_no_lock() {
        let clock = Clock::manual();
        let [mut before, mut other] =
            [5, 6].map(|seconds| clock.sleep_until(clock.now() + Duration::from_secs(seconds)));
        assert!(poll(&mut before).is_pending());
        let waker = crate::testing::fork_when_dropped(move || drop(before));
        assert!(Pin::new(&mut other).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(poll(&mut other).is_pending());
    }

    #[test]
    fn a_forked_child_that_wakes_all_waits_for_no_lock() {
        let clock = Clock::manual();
        let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(5));
        let waker = crate::testing::fork_when_dropped({
            let clock = clock.clone();
            move || clock.wake_all()
        });
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(poll(&mut sleep).is_pending(), "its last waker is replaced, and so dropped under the lock");
    }

    #[test]
    fn all_that_sleep_are_woken_and_sleep_on() {
        let clock = Clock::manual();
        let count = Arc::new(Wakes(AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let at = clock.now() + Duration::from_secs(5);
        let mut sleeps = [clock.sleep_until(at), clock.sleep_until(at)];
        for _ in 0..2 {
            for sleep in &mut sleeps {
                assert!(Pin::new(sleep).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            clock.wake_all();
        }
        assert_eq!(count.0.load(Ordering::SeqCst), 4);
        assert_eq!(clock.next_timer(), Some(at));
    }

    #[test]
    fn a_timer_that_is_taken_back_costs_the_driver_nothing() {
        let clock = Clock::manual();
        let count = Arc::new(Wakes(AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let drive = || clock.poll_drive(&mut Context::from_waker(&waker));
        assert_eq!(drive(), None);
        let start = clock.now();
        for at in 1..=10 {
            let mut sleep = clock.sleep_until(start + Duration::from_secs(at));
            assert!(poll(&mut sleep).is_pending());
        }
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "only the first is earlier than the plan");
        clock.advance_to(start + Duration::from_secs(1));
        assert_eq!(drive(), None, "woken for nothing, it plans anew");
        let mut sleep = clock.sleep_until(start + Duration::from_secs(5));
        assert!(poll(&mut sleep).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 2, "without a plan every timer counts");
        let mut earlier = clock.sleep_until(start + Duration::from_secs(4));
        assert!(poll(&mut earlier).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 3, "and so does an earlier one");
        assert_eq!(drive(), Some(start + Duration::from_secs(4)));
    }

    struct Wakes(AtomicU64);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_stopped_clock_ends_every_sleep() {
        let clock = Clock::manual();
        let mut sleep = clock.sleep_until(clock.now() + Duration::from_secs(5));
        assert!(poll(&mut sleep).is_pending());
        clock.stop();
        assert!(poll(&mut sleep).is_ready());
    }

    #[test]
    fn the_boot_clock_does_not_go_back() {
        let clock = Clock::boot();
        let first = clock.now();
        assert!(clock.now() >= first && first > Moment::ZERO);
        assert!(clock.wall_micros() > 1_600_000_000_000_000);
    }
}
