//! Cleanup of entries that nobody waits for.

use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::{Entry, Removed, Reply};
use crate::error::Result;
use crate::time::{Backoff, Clock, Moment};

/// How an entry that nobody waits for is cleaned up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleanup {
    /// [`Entry::withdraw`]: the claim may wait or hold.
    Withdraw,
    /// [`Entry::release`]: its work is done.
    Release,
}

impl Cleanup {
    /// Asks the entry to leave nothing behind.
    pub fn ask(self, entry: &mut dyn Entry) -> Reply<'_, Result<Removed>> {
        match self {
            Cleanup::Withdraw => entry.withdraw(),
            Cleanup::Release => entry.release(),
        }
    }
}

/// Leaves nothing of `entry` behind: at once if the engine answers at once, else in the background. The cleaner retries until the
/// engine confirms, and stops at the [deadline](cleanup_deadline).
pub fn clean_up(mut entry: Box<dyn Entry>, claim: &Claim, how: Cleanup) {
    // Engines that answer on the spot are done here, without a task.
    if let Reply::Ready(Some(Ok(_))) = how.ask(&mut *entry) {
        return;
    }
    let clock = claim.runtime.clock().clone();
    let until = cleanup_deadline(claim);
    claim.runtime.cleaner().finish(async move { clean_up_until(entry, how, &clock, until).await });
}

/// Returns when nothing of the claim can be left at the engine: a request sent before now may have made a lease that ends `ttl`
/// from now.
pub fn cleanup_deadline(claim: &Claim) -> Moment {
    claim.runtime.clock().now() + claim.ttl().max(Duration::from_secs(5)) + Duration::from_secs(1)
}

/// Leaves nothing of `entry` behind, and retries until `until`.
pub async fn clean_up_until(mut entry: Box<dyn Entry>, how: Cleanup, clock: &Clock, until: Moment) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        // If this future is dropped here, its host has stopped: the lease is what ends the claim then.
        match clock.within(until, how.ask(&mut *entry)).await {
            Some(Ok(_)) => return,
            None => break,
            Some(Err(error)) if error.is_denied() && !error.is_transient() => {
                tracing::warn!(%error, "cleanup was refused; the engine ends it with the lease");
                return;
            }
            Some(Err(error)) => tracing::debug!(%error, "cleanup failed, trying again"),
        }
        if clock.now() >= until {
            break;
        }
        backoff.sleep(clock).await;
        if clock.is_stopped() {
            // And the client with it: what fails at once would be asked for without a pause.
            break;
        }
    }
    tracing::warn!("cleanup was not confirmed before the lease's end; the engine ends it with the lease");
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::backend::{Attempt, Renewal};
    use crate::error::{Error, ErrorKind};

    /// At an engine that is gone.
    struct Stuck;

    impl Entry for Stuck {
        fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
            Reply::ready(Ok(Attempt::Gone))
        }

        fn poll_wait(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn renewal(&self) -> Option<Renewal> {
            None
        }

        fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
            Reply::ready(Err(Error::new(ErrorKind::Unreachable, "it is gone")))
        }

        fn detach(&mut self) -> Reply<'_, Result<()>> {
            Reply::ready(Ok(()))
        }
    }

    #[test]
    fn cleanup_that_fails_ends_with_its_clock() {
        let clock = Clock::manual();
        let until = clock.now() + Duration::from_secs(30);
        let mut cleanup = pin!(clean_up_until(Box::new(Stuck), Cleanup::Release, &clock, until));
        let mut poll = || cleanup.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending(), "it tries again after a pause");
        clock.stop();
        assert!(poll().is_ready(), "nobody waits for it any more");
    }
}
