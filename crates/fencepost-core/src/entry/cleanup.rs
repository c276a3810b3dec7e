//! What becomes of an entry that nobody waits for.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::attempt::Attempt;
use crate::backend::claim::Claim;
use crate::backend::reply::Reply;
use crate::backend::session::Session;
use crate::entry::place::{How, Leave, Left, Place, Request};
use crate::entry::{Entry, Life};
use crate::error::{Error, ErrorKind};
use crate::time::{Backoff, Moment};

/// Returns when the claim can hold nothing at the engine any more. A request that was sent before now may still arrive, and makes a lease of
/// the longest length that was asked for; one second is added for its way. A claim in the queue may stay for as long as its engine keeps
/// waiters, and holds nothing.
pub fn cleanup_deadline(claim: &Claim) -> Moment {
    claim.runtime.clock().now() + claim.longest_ttl().max(Duration::from_secs(5)) + Duration::from_secs(1)
}

/// What becomes of a claim whose cleanup has ended without a confirmation.
const STAYS: &str = "the claim stays until its lease, or the session or connection that keeps it, ends";

impl Entry {
    /// Leaves nothing of the claim behind, in the background: at once if the engine answers at once.
    pub fn clean_up(self, how: Leave) {
        drop(self.on_drop(Some(how)));
    }

    /// Leaves nothing of the claim behind, and retries until `until`. If the future is dropped, its host has stopped: the lease is what
    /// ends the claim then.
    pub fn clean_up_until(self, how: Leave, until: Moment) -> impl Future<Output = ()> + Send {
        let mut entry = self.on_drop(None);
        async move {
            let clock = entry.life.claim.runtime.clock().clone();
            let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
            loop {
                match clock.within(until, entry.remove(how)).await {
                    Some(Ok(_)) => return,
                    None => break,
                    Some(Err(error)) if error.is_denied() && !error.is_transient() => {
                        tracing::warn!(%error, "cleanup was refused; {STAYS}");
                        return;
                    }
                    Some(Err(error)) => tracing::debug!(%error, "cleanup failed, trying again"),
                }
                if clock.now() >= until {
                    break;
                }
                backoff.sleep(&clock).await;
                if clock.is_stopped() {
                    // The client has stopped with it, and pauses end at once then, so this loop would run without a pause.
                    break;
                }
            }
            tracing::warn!("cleanup was not confirmed in the time of a lease; {STAYS}");
        }
    }

    /// Sends nothing any more. The claim may stay at the engine until its lease ends. Claims of the process that waited for this one continue.
    pub fn forget(mut self) {
        self.let_go();
    }

    pub(super) fn let_go(&mut self) {
        (self.life.kept, self.life.on_drop, self.run) = (None, None, None);
        if !self.life.is_absent() {
            self.place.abandon(self.life.asking);
            self.life.abandon();
        }
    }

    /// Moves it out of an entry that is being dropped.
    fn take(&mut self) -> Entry {
        let left = Life::new(Arc::clone(&self.life.claim), How::Enter);
        let life = std::mem::replace(&mut self.life, left);
        let place = std::mem::replace(&mut self.place, Box::new(Nowhere));
        Entry { place, life, run: self.run.take() }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.life.claim.runtime.clock().is_forked() {
            // The entry belongs to the parent process, which still uses its connections.
            let place = std::mem::replace(&mut self.place, Box::new(Nowhere));
            let claim = Arc::clone(&self.life.claim);
            std::mem::forget((place, self.life.kept.take(), self.life.turn.take(), self.run.take(), claim));
            return;
        }
        if self.life.is_absent() && self.run.as_ref().is_none_or(|run| !run.is_granted()) {
            return;
        }
        let Some(how) = self.life.on_drop else {
            self.let_go();
            return;
        };
        // Engines that answer on the spot are done here, without a task.
        if let Reply::Ready(Some(Ok(_))) = self.remove(how) {
            return;
        }
        let (until, runtime) = (cleanup_deadline(&self.life.claim), self.life.claim.runtime.clone());
        runtime.cleaner().finish(self.take().clean_up_until(how, until));
    }
}

/// The place of a claim that has none any more.
struct Nowhere;

impl Place for Nowhere {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::ready(Err(Error::new(ErrorKind::Internal, "the claim has left")))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn leave(&mut self, _: Leave, _: bool) -> Request<'_, Left> {
        Request::ready(Err(Error::new(ErrorKind::Internal, "the claim has left")))
    }

    fn session(&self, _: bool) -> Option<Arc<dyn Session>> {
        None
    }
}
