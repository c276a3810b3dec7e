//! The record of one validity.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use crate::time::{Clock, Moment};
use crate::validity::failure::Status;
use crate::validity::loss::{GrantObserver, Loss, State};

/// The validity of one claim, or of a session that many claims rest on.
///
/// Engines write a validity, and readers compare it with the clock. So no task has to run for it to end, and a process that was stopped for
/// longer than its lease sees the loss at its first look. A validity counts from *before* the request was sent, and ends a margin early
/// (the fiftieth part, at least 50 ms) because clocks drift apart. Once it was seen to have ended, it is never revived.
pub struct Validity {
    /// The end of the validity, a margin before that of the lease. Zero: nothing was ever confirmed, or it rests on others alone.
    until: AtomicU64,
    /// When it becomes suspect, because half of the lease has passed without a renewal.
    pub(super) suspect: AtomicU64,
    /// When the next renewal is due.
    due: AtomicU64,
    /// Set once, by the first certain loss.
    pub(super) end: OnceLock<Loss>,
    /// Its holder has given it back. The engine may not know that yet.
    given_back: AtomicBool,
    /// The parts that few of many validities have.
    pub(super) optional: OnceLock<Box<Optional>>,
}

impl Validity {
    /// Makes a validity that nothing was confirmed for.
    pub fn new() -> Validity {
        Validity {
            until: AtomicU64::new(0),
            suspect: AtomicU64::new(u64::MAX),
            due: AtomicU64::new(u64::MAX),
            end: OnceLock::new(),
            given_back: AtomicBool::new(false),
            optional: OnceLock::new(),
        }
    }

    /// Makes a validity that ends only by [`end`](Validity::end), for grants that rest on a session alone.
    pub fn forever() -> Validity {
        let validity = Validity::new();
        validity.until.store(u64::MAX, Ordering::Release);
        validity
    }

    /// Notes that the engine has confirmed the grant for `ttl` by a request sent at `sent`. Returns whether the validity has not ended. One that
    /// has ended is not revived, whatever the engine says.
    pub fn confirm(&self, clock: &Clock, sent: Moment, ttl: Duration) -> bool {
        // A first confirmation does not read the clock: the user of the grant does.
        if self.end.get().is_some()
            || (self.until.load(Ordering::Acquire) != 0 && !self.is_valid(clock.now()))
        {
            return false;
        }
        self.suspect.fetch_max_first((sent + ttl / 2).as_nanos());
        self.due.store((sent + ttl / 3).as_nanos(), Ordering::Release);
        self.until.fetch_max((sent + ttl.saturating_sub(margin(ttl))).as_nanos(), Ordering::AcqRel);
        self.forget_trouble();
        self.end.get().is_none()
    }

    /// Notes that the engine has confirmed a position in the queue by a request sent at `sent`. This gives no validity, but schedules the next
    /// renewal of the position.
    pub fn waiting(&self, sent: Moment, ttl: Duration) {
        self.due.store((sent + ttl / 3).as_nanos(), Ordering::Release);
    }

    /// Moves the next renewal to another time, unless it was moved since it was to be at `before`.
    pub(crate) fn reschedule(&self, before: Moment, to: Moment) {
        // If this fails, whoever has moved it knows more.
        let _ =
            self.due.compare_exchange(before.as_nanos(), to.as_nanos(), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes that renewals do not get through. The validity is suspect from now on, until the next confirmation.
    pub fn doubt(&self) {
        if self.suspect.swap(0, Ordering::AcqRel) != 0 {
            self.wake();
        }
    }

    /// Ends the validity by a certain loss. The first loss counts.
    pub fn end(&self, why: Loss) {
        if self.end.set(why).is_ok() {
            self.wake();
            if let Some(observer) = self.observer() {
                observer.lost(why, self.detail());
            }
        }
    }

    /// Notes that its holder gives it back. This comes before the engine is asked to end the grant, so that no reader takes it for held when
    /// another claim is granted. At the engine nothing changes.
    pub(crate) fn give_back(&self) {
        if self.end.get().is_none() {
            self.given_back.store(true, Ordering::Release);
            self.wake();
        }
    }

    pub(super) fn is_given_back(&self) -> bool {
        self.given_back.load(Ordering::Acquire)
    }

    /// Makes this validity need `q` of these others, too. Only the first call counts.
    pub fn rest_on(&self, q: usize, of: Vec<Arc<Validity>>) {
        let _ = self.optional().rest.set(Rest::new(q, of));
    }

    /// Makes this validity rest on `validity` instead of the one with this `number`, which has ended. Read the clock for `now` after `validity`
    /// was granted. Returns whether this validity has not ended, because nothing revives it.
    ///
    /// If it is valid at `now`, it was valid all the time, because none of those that it rested on so far is ever revived. From `now` on the
    /// other one is granted, too. So there is no moment at which fewer than `q` were valid.
    pub fn rest_instead(&self, now: Moment, number: usize, validity: &Arc<Validity>) -> bool {
        let Some(rest) = self.rest() else { return false };
        if let State::Lost(_) = self.state(now) {
            return false;
        }
        if let Some(old) = rest.of.write().get_mut(number) {
            *old = Arc::clone(validity);
        }
        // A watcher that is added or removed meanwhile finds the new one.
        let status = self.optional().status();
        for (key, waker) in &status.watchers {
            validity.set_watch(*key, Some(waker));
        }
        drop(status);
        if validity.ended().is_some() {
            self.wake();
        }
        true
    }

    /// Returns the state of the grant at `now`. A loss that was seen is final.
    pub fn state(&self, now: Moment) -> State {
        if let Some(&why) = self.end.get() {
            return State::Lost(why);
        }
        if !self.is_valid(now) {
            let why = self.why_invalid();
            self.end(why);
            return State::Lost(self.end.get().copied().unwrap_or(why));
        }
        if now.as_nanos() >= self.suspect.load(Ordering::Acquire) || self.rests_in_doubt(now) {
            State::Suspect
        } else {
            State::Held
        }
    }

    /// Returns the loss at `now`, if there is one, and ends nothing.
    pub(crate) fn loss_at(&self, now: Moment) -> Option<Loss> {
        self.ended().or_else(|| (!self.is_valid(now)).then(|| self.why_invalid()))
    }

    /// Returns the state of the grant as its readers see it. Takes no lock in a forked process, because a thread that does not exist there may
    /// hold it.
    pub(crate) fn seen(&self, clock: &Clock) -> State {
        if clock.is_forked() {
            State::Lost(Loss::Forked)
        } else if self.is_given_back() {
            State::Lost(Loss::Released)
        } else {
            let now = clock.now();
            if clock.is_closed() && self.loss_at(now).is_none() {
                self.end(Loss::Closed);
            }
            self.state(now)
        }
    }

    /// Returns for how long its readers may take it for valid, if nobody renews it. Zero: it is lost. [`Duration::MAX`]: it has no end of its
    /// own.
    pub(crate) fn remaining(&self, clock: &Clock) -> Duration {
        match self.valid_until(clock) {
            Moment::NEVER => Duration::MAX,
            until => until.since(clock.now()),
        }
    }

    /// Returns until when its readers may take it for valid, if nobody renews it. Zero: it is lost.
    pub(crate) fn valid_until(&self, clock: &Clock) -> Moment {
        match self.seen(clock) {
            State::Lost(_) => Moment::ZERO,
            State::Held | State::Suspect => self.until(),
        }
    }

    /// Returns until when it is valid if nobody renews it. [`Moment::NEVER`]: until it is ended.
    pub fn until(&self) -> Moment {
        if self.end.get().is_some() {
            return Moment::ZERO;
        }
        let own = match self.until.load(Ordering::Acquire) {
            0 if self.rest().is_some() => Moment::NEVER,
            nanos => Moment::from_nanos(nanos),
        };
        let Some(rest) = self.rest() else { return own };
        // With q of n needed, the q-th longest validity decides.
        let mut untils: Vec<Moment> = rest.of().iter().map(|validity| validity.until()).collect();
        untils.sort_unstable_by(|a, b| b.cmp(a));
        own.min(rest.q.checked_sub(1).and_then(|q| untils.get(q).copied()).unwrap_or(Moment::ZERO))
    }

    /// Returns when it is to be renewed. [`Moment::NEVER`]: not at all.
    pub fn due(&self) -> Moment {
        Moment::from_nanos(self.due.load(Ordering::Acquire))
    }

    /// Returns whether a grant was ever confirmed, or the validity has no end of its own or rests on others. `false` for a claim that is queued.
    pub fn is_confirmed(&self) -> bool {
        self.until.load(Ordering::Acquire) != 0 || self.rest().is_some()
    }

    /// Returns the certain loss, if there is one.
    pub fn ended(&self) -> Option<Loss> {
        self.end.get().copied()
    }

    /// Completes with the reason when its readers see that it has ended.
    pub(crate) async fn lost(&self, clock: &Clock) -> Loss {
        let mut watch = self.watch(clock);
        loop {
            if let State::Lost(why) = self.seen(clock) {
                return why;
            }
            let until = self.until();
            let mut sleep = clock.sleep_until(until);
            let lost = poll_fn(|cx| {
                if let State::Lost(why) = watch.seen(cx.waker()) {
                    return Poll::Ready(Some(why));
                }
                // Renewed meanwhile, or one of those that it rests on has ended: sleep again.
                if self.until() < until {
                    return Poll::Ready(None);
                }
                Pin::new(&mut sleep).poll(cx).map(|()| None)
            })
            .await;
            if let Some(why) = lost {
                return why;
            }
            // Its client is closed, so nobody renews it, and no timer runs until its end.
            if clock.is_stopped() {
                self.end(Loss::SessionEnded);
            }
        }
    }

    /// Returns when it becomes suspect if nobody renews it.
    fn suspect_at(&self) -> Moment {
        let own = Moment::from_nanos(self.suspect.load(Ordering::Acquire));
        let Some(rest) = self.rest() else { return own };
        let mut all: Vec<Moment> = rest.of().iter().map(|validity| validity.suspect_at()).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        own.min(rest.q.checked_sub(1).and_then(|q| all.get(q).copied()).unwrap_or(Moment::ZERO))
    }

    /// Completes when its readers see that it is suspect or has ended.
    pub(crate) async fn suspect(&self, clock: &Clock) -> State {
        let mut watch = self.watch(clock);
        loop {
            let state = self.seen(clock);
            if state != State::Held {
                return state;
            }
            let until = self.until().min(self.suspect_at());
            let mut sleep = clock.sleep_until(until);
            let state = poll_fn(|cx| {
                let state = watch.seen(cx.waker());
                if state != State::Held {
                    return Poll::Ready(Some(state));
                }
                Pin::new(&mut sleep).poll(cx).map(|()| None)
            });
            if let Some(state) = state.await {
                return state;
            }
            if clock.is_stopped() {
                self.end(Loss::SessionEnded);
            }
        }
    }

    pub(super) fn rest(&self) -> Option<&Rest> {
        self.optional.get()?.rest.get()
    }

    fn is_valid(&self, now: Moment) -> bool {
        now < self.until()
    }

    fn rests_in_doubt(&self, now: Moment) -> bool {
        self.rest()
            .is_some_and(|rest| rest.of().iter().filter(|validity| validity.is_held(now)).count() < rest.q)
    }

    /// Returns whether it is valid and not suspect, and never ends it: the answer that confirms it may still be under way.
    fn is_held(&self, now: Moment) -> bool {
        self.end.get().is_none()
            && self.is_valid(now)
            && now.as_nanos() < self.suspect.load(Ordering::Acquire)
            && !self.rests_in_doubt(now)
    }

    /// Returns the loss that ended most of the validities that this one needs.
    fn why_invalid(&self) -> Loss {
        let ended: Vec<Loss> = self
            .rest()
            .iter()
            .flat_map(|rest| rest.of().clone())
            .filter_map(|validity| validity.ended())
            .collect();
        let times = |why: &Loss| ended.iter().filter(|other| *other == why).count();
        // Of losses that are equally frequent, the first.
        ended.iter().copied().rev().max_by_key(times).unwrap_or(Loss::Expired)
    }
}

impl Default for Validity {
    fn default() -> Validity {
        Validity::new()
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("until", &self.until())
            .field("end", &self.end.get())
            .finish_non_exhaustive()
    }
}

/// How much earlier a holder stops trusting its lease than the engine does: the fiftieth part, at least 50 ms.
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 50).max(Duration::from_millis(50)).min(ttl)
}

/// `u64::MAX` stands for "not yet". The first value replaces it, and later ones only move it forward.
trait FetchMaxFirst {
    fn fetch_max_first(&self, value: u64);
}

impl FetchMaxFirst for AtomicU64 {
    fn fetch_max_first(&self, value: u64) {
        let _ = self.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            Some(if old == u64::MAX { value } else { old.max(value) })
        });
    }
}

#[derive(Default)]
pub(super) struct Optional {
    /// The validities that this one needs.
    pub(super) rest: OnceLock<Rest>,
    /// The details of a loss.
    pub(super) detail: OnceLock<(Loss, Arc<str>)>,
    /// Is told what happens to the grant.
    pub(super) observer: OnceLock<Arc<dyn GrantObserver>>,
    status: Mutex<Status>,
}

/// `q` of these validities must be valid.
pub(super) struct Rest {
    pub(super) q: usize,
    pub(super) of: RwLock<Vec<Arc<Validity>>>,
}

impl Rest {
    pub(super) fn new(q: usize, of: Vec<Arc<Validity>>) -> Rest {
        Rest { q, of: RwLock::new(of) }
    }

    pub(super) fn of(&self) -> RwLockReadGuard<'_, Vec<Arc<Validity>>> {
        self.of.read()
    }
}

impl Optional {
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock()
    }
}
