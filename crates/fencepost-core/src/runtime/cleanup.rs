//! Cleanup with an entry that nobody waits for any more.

use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::{Entry, Removed, Reply};
use crate::error::Result;
use crate::time::{Clock, Moment};

/// How an entry is parted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleanup {
    /// It may wait or hold: nothing is to be left.
    Withdraw,
    /// Its work was done.
    Release,
}

/// Leaves nothing of `entry` behind: on the spot if the engine answers so, else by the cleaner. That goes on until the engine
/// confirms it, and ends with the claim's lease at the latest: after that nothing of it is left anyway.
pub fn clean_up(mut entry: Box<dyn Entry>, claim: &Claim, how: Cleanup) {
    // Engines that answer on the spot are done here, without a task.
    if let Reply::Ready(Some(Ok(_))) = ask(&mut *entry, how) {
        return;
    }
    let clock = claim.runtime.clock().clone();
    let until = bound(claim);
    claim.runtime.cleaner().finish(async move { reap(entry, how, &clock, until).await });
}

/// Until when cleaning up after the claim can be of use: a request sent before now can have made a lease that ends `ttl` from
/// now.
pub(crate) fn bound(claim: &Claim) -> Moment {
    claim.runtime.clock().now() + claim.ttl().max(Duration::from_secs(5)) + Duration::from_secs(1)
}

/// Leaves nothing of `entry` behind, trying until then.
pub(crate) async fn reap(mut entry: Box<dyn Entry>, how: Cleanup, clock: &Clock, until: Moment) {
    let mut pause = Duration::from_millis(10);
    loop {
        // If this future is dropped here, its host has stopped: the lease is what ends the claim then.
        match clock.within(until, ask(&mut *entry, how)).await {
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
        clock.sleep_until(clock.now() + pause).await;
        if clock.is_stopped() {
            // And the client with it: what fails at once would be asked for without a pause.
            break;
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    tracing::warn!("cleanup was not confirmed before the lease's end; the engine ends it with the lease");
}

pub(crate) fn ask(entry: &mut dyn Entry, how: Cleanup) -> Reply<'_, Result<Removed>> {
    match how {
        Cleanup::Withdraw => entry.withdraw(),
        Cleanup::Release => entry.release(),
    }
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

        fn poll_wait(&mut self, _: &mut Context<'_>, _: Moment) -> Poll<()> {
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
        let mut cleanup = pin!(reap(Box::new(Stuck), Cleanup::Release, &clock, until));
        let mut poll = || cleanup.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending(), "it tries again after a pause");
        clock.stop();
        assert!(poll().is_ready(), "nobody waits for it any more");
    }
}
