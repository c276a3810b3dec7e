//! The removal of claims for which core asks no more.

use std::time::Duration;

use crate::error::Result;
use crate::runtime::Runtime;
use crate::time::{Backoff, Clock, Moment};

/// The first pause after a removal that failed, and the longest one. Somebody may wait for the claim's end.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after removals that fail until somebody changes something, for example because the disk is full.
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// What may be at the engine of a claim for which core asks no more: see [`Place::abandon`](crate::Place::abandon). For an engine where other
/// claims can keep it alive for longer than its lease.
pub trait AbandonedClaim: Send + 'static {
    /// Returns until when the claim may be meant to stay, because its holder has told others of its lease. It is not removed before.
    fn stays_until(&self) -> Moment {
        Moment::ZERO
    }

    /// Returns whether the claim ends without a removal: its session or its leases have ended, or its client is closed.
    fn has_ended(&self) -> bool;

    /// Waits until the next try. An engine whose parts of the claim must not outlast its end wakes at that end, too.
    fn pause(&mut self, clock: &Clock, until: Moment) -> impl Future<Output = ()> + Send {
        clock.sleep_until(until)
    }

    /// Tries once to remove the claim. The request has a time limit of its own. `Ok`: nothing of the claim is left, or others rely on what is
    /// left.
    ///
    /// # Errors
    /// The claim may still be at the engine.
    fn remove(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Removes a claim in the background, and retries until that succeeds, until the claim has ended, or until the client has stopped. The client's
/// close does not wait for it.
pub fn remove_abandoned(runtime: &Runtime, claim: impl AbandonedClaim) {
    runtime.spawn(retry(runtime.clone(), claim));
}

async fn retry(runtime: Runtime, mut claim: impl AbandonedClaim) {
    let clock = runtime.clock();
    // The seeds of a client's claims differ, because one outage may concern them all.
    let seed = runtime.fresh_id().as_u128() as u64;
    let mut pauses = Backoff::new(PAUSE, LONGEST_PAUSE).jittered(seed);
    let mut refused_pauses = Backoff::new(PAUSE, LONGEST_REFUSED_PAUSE).jittered(seed);
    let mut next = claim.stays_until();
    loop {
        claim.pause(clock, next).await;
        // The pauses of a client that has stopped end at once, although the lease may last.
        if clock.is_stopped() || claim.has_ended() {
            return;
        }
        let Err(error) = claim.remove().await else { return };
        tracing::debug!(%error, "a claim that was given up is still at the engine");
        let pauses = if error.is_transient() { &mut pauses } else { &mut refused_pauses };
        next = clock.now() + pauses.pause();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::testing::NoTasks;
    use crate::time::Clock;

    /// An engine that fails with this kind of error, until it works.
    #[derive(Default)]
    struct Engine {
        kind: Option<ErrorKind>,
        stays_until: Moment,
        has_ended: AtomicBool,
        works: AtomicBool,
        tries: AtomicU32,
    }

    impl AbandonedClaim for Arc<Engine> {
        fn stays_until(&self) -> Moment {
            self.stays_until
        }

        fn has_ended(&self) -> bool {
            self.has_ended.load(Ordering::Relaxed)
        }

        async fn remove(&mut self) -> Result<()> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            if self.works.load(Ordering::Relaxed) {
                return Ok(());
            }
            Err(Error::new(self.kind.unwrap_or(ErrorKind::Unreachable), "it failed"))
        }
    }

    /// Removes the claim for `time`, and calls `change` at its half. Returns how many tries were made in each half, and whether it has ended.
    fn tries(clock: &Clock, engine: &Arc<Engine>, time: Duration, change: impl FnOnce()) -> (u32, u32, bool) {
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let mut removal = pin!(retry(runtime, Arc::clone(engine)));
        let mut run_until = |end: Moment| {
            loop {
                let ended = removal.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let next = clock.next_timer().filter(|next| *next <= end);
                match (ended, next) {
                    (Poll::Pending, Some(next)) => clock.advance_to(next),
                    (ended, _) => {
                        clock.advance_to(end);
                        return ended.is_ready();
                    }
                }
            }
        };
        let start = clock.now();
        assert!(!run_until(start + time / 2), "nothing has ended it");
        let before = engine.tries.load(Ordering::Relaxed);
        change();
        let ended = run_until(start + time);
        (before, engine.tries.load(Ordering::Relaxed) - before, ended)
    }

    const MINUTES: Duration = Duration::from_secs(240);

    #[test]
    fn a_removal_is_retried_each_second_until_it_succeeds() {
        let (clock, engine) = (Clock::manual(), Arc::new(Engine::default()));
        let (before, after, ended) =
            tries(&clock, &engine, MINUTES, || engine.works.store(true, Ordering::Relaxed));
        assert!((120..260).contains(&before), "{before} tries in two minutes");
        assert_eq!((after, ended), (1, true));
    }

    /// Pauses grow, because somebody may already be changing what the refusal is about.
    #[test]
    fn a_removal_that_is_refused_is_retried_soon_and_then_seldom() {
        for kind in [ErrorKind::Denied, ErrorKind::Configuration] {
            let engine = || Arc::new(Engine { kind: Some(kind), ..Engine::default() });
            let (soon, ..) = tries(&Clock::manual(), &engine(), Duration::from_secs(2), || ());
            assert!((7..=8).contains(&soon), "{soon} tries in a second");
            let (clock, engine) = (Clock::manual(), engine());
            let (before, after, ended) =
                tries(&clock, &engine, MINUTES, || engine.works.store(true, Ordering::Relaxed));
            assert!((14..=22).contains(&before), "{before} tries in two minutes");
            assert_eq!((after, ended), (1, true));
        }
    }

    #[test]
    fn a_claim_that_has_ended_is_not_removed() {
        let (clock, engine) = (Clock::manual(), Arc::new(Engine::default()));
        let end = || engine.has_ended.store(true, Ordering::Relaxed);
        assert!(matches!(tries(&clock, &engine, MINUTES, end), (1.., 0, true)));
    }

    #[test]
    fn a_client_that_has_stopped_removes_nothing() {
        let (clock, engine) = (Clock::manual(), Arc::new(Engine::default()));
        assert!(matches!(tries(&clock, &engine, MINUTES, || clock.stop()), (1.., 0, true)));
        let clock = Clock::manual();
        let stays_until = clock.now() + MINUTES;
        let engine = Arc::new(Engine { stays_until, ..Engine::default() });
        assert_eq!(tries(&clock, &engine, MINUTES, || clock.stop()), (0, 0, true), "its lease lasts");
    }

    #[test]
    fn a_claim_that_is_meant_to_stay_is_not_removed_before() {
        let clock = Clock::manual();
        let stays_until = clock.now() + MINUTES / 2 + Duration::from_secs(1);
        let engine = Arc::new(Engine { stays_until, works: AtomicBool::new(true), ..Engine::default() });
        assert_eq!(tries(&clock, &engine, MINUTES, || ()), (0, 1, true));
    }
}
