//! Makes a grant shared again, also when nobody waits for that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::backend::Reply;
use crate::backend::claim::Claim;
use crate::entry::Entry;
use crate::entry::cleanup::cleanup_deadline;
use crate::error::{Error, Result};
use crate::guard::owned::{Owned, Undoing};
use crate::time::{Backoff, Moment};
use crate::token::Token;

impl Owned {
    /// Makes the grant shared, with this token, and removes its mark. The request is sent now, and repeated in the background until the engine has confirmed
    /// it. [`settle`](Owned::settle) waits for that.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost), from an engine that answers on the spot.
    pub(super) fn undo_upgrade(&mut self, token: Token) -> Result<()> {
        let Some(mut entry) = self.slot().take() else { return Ok(()) };
        // Engines that answer on the spot are done here, without a task.
        let answer = match entry.downgrade(token) {
            Reply::Ready(answer) => answer,
            Reply::Coming(_) => None,
        };
        if let Some(answer) = answer.filter(is_final) {
            *self.slot() = Some(entry);
            self.lend();
            return answer;
        }
        let (tell, done) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (lent, claim) = (Arc::downgrade(self.lent.get_or_insert_default()), Arc::clone(&self.claim));
        self.claim.runtime.cleaner().finish(async move {
            let answer = undo(&mut entry, token, &claim, stopped).await;
            // Without its guard the entry is released by its drop.
            if let Some(lent) = lent.upgrade() {
                lent.put(entry, &claim);
            }
            let _ = tell.send(answer);
        });
        self.undoing = Some(Undoing { done, stop: Some(stop) });
        Ok(())
    }

    /// Waits for what [`undo_upgrade`](Owned::undo_upgrade) began, until then at most.
    ///
    /// # Errors
    /// The engine's, or that it did not answer in time.
    pub(super) async fn settle(&mut self, until: Moment) -> Result<()> {
        let Some(undoing) = &mut self.undoing else { return Ok(()) };
        let clock = self.client.runtime.clock();
        let Some(answer) = clock.within(until, &mut undoing.done).await else {
            return Err(Error::no_answer().unknown());
        };
        self.undoing = None;
        // Without an answer its host has stopped.
        answer.unwrap_or(Ok(()))
    }

    /// Takes the entry back for its release, until then at most. Whether its grant is shared does not matter any more.
    pub(super) async fn call_back(&mut self, until: Moment) -> Result<()> {
        let Some(undoing) = &mut self.undoing else { return Ok(()) };
        undoing.stop = None;
        let settled = self.settle(until).await;
        if self.undoing.is_none() { Ok(()) } else { settled }
    }
}

/// Whether nothing is left to do. A renewal tells the holder of a loss, and its reason.
fn is_final(answer: &Result<()>) -> bool {
    answer.as_ref().map_or_else(Error::is_lost, |()| true)
}

/// Makes the grant shared, and retries until it is, is lost, or is called back.
async fn undo(entry: &mut Entry, token: Token, claim: &Claim, stopped: oneshot::Receiver<()>) -> Result<()> {
    let clock = claim.runtime.clock();
    let work = pin!(async {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            let answer = clock.within(cleanup_deadline(claim), entry.downgrade(token)).await;
            let answer = answer.unwrap_or_else(|| Err(Error::no_answer().unknown()));
            if is_final(&answer) {
                return answer;
            }
            let refused = answer.as_ref().is_err_and(|error| !error.is_transient());
            if refused || !claim.is_valid() || clock.is_stopped() {
                tracing::warn!(lock = %claim.want().name, "an upgrade was not undone; it ends with the lock or its lease");
                return answer;
            }
            backoff.sleep(clock).await;
        }
    });
    match select(work, stopped).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Error::no_answer().unknown()),
    }
}
