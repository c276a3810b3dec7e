//! An entry that leaves nothing behind when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::{Entry, Removed, Reply};
use crate::client::shared::ClientShared;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::cleanup::{Cleanup, clean_up};
use crate::sync::Mutex;
use crate::telemetry::Holding;
use crate::time::{Backoff, Moment};
use crate::token::Token;
use crate::validity::{Loss, State};

/// An entry and the duty to leave nothing of it behind: dropped, it goes to the cleaner.
pub(crate) struct Owned {
    pub(super) client: Arc<ClientShared>,
    pub(super) claim: Arc<Claim>,
    /// An entry is not `Sync`, and a guard has to be: the future of `lost` borrows it. Nobody locks this mutex: it is reached
    /// through `&mut` alone, see [`slot`](Owned::slot).
    entry: Mutex<Option<Box<dyn Entry>>>,
    granted: bool,
    /// Reports the end of the grant. `None`: nobody listens.
    holding: Option<Arc<Holding>>,
}

impl Owned {
    pub(crate) fn enter(client: &Arc<ClientShared>, claim: Arc<Claim>) -> Owned {
        let entry = Mutex::new(Some(client.backend.enter(Arc::clone(&claim))));
        Owned { client: Arc::clone(client), claim, entry, granted: false, holding: None }
    }

    /// A detached lease that was taken up.
    pub(super) fn attached(client: &Arc<ClientShared>, claim: Arc<Claim>, entry: Box<dyn Entry>) -> Owned {
        Owned {
            client: Arc::clone(client),
            claim,
            entry: Mutex::new(Some(entry)),
            granted: true,
            holding: None,
        }
    }

    /// A detached lease to be released.
    pub(crate) fn detached(client: &Arc<ClientShared>, claim: Arc<Claim>) -> Owned {
        let entry = Mutex::new(Some(client.backend.attach(Arc::clone(&claim))));
        Owned { client: Arc::clone(client), claim, entry, granted: true, holding: None }
    }

    pub(crate) fn entry(&mut self) -> &mut dyn Entry {
        &mut **self.slot().as_mut().expect("the entry is there until it is given away")
    }

    pub(super) fn slot(&mut self) -> &mut Option<Box<dyn Entry>> {
        self.entry.get_mut()
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(super) fn state(&self) -> State {
        self.claim.validity.state(self.client.runtime.clock().now())
    }

    /// Renews what keeps the entry alive, from now on.
    pub(crate) fn keep(&mut self) {
        if self.granted && !self.claim.renewed {
            // Its place in line was renewed, the lease is not.
            self.client.renewer.forget(&self.claim);
            return;
        }
        if let Some(renewal) = self.slot().as_ref().and_then(|entry| entry.renewal()) {
            self.client.renewer.keep(renewal);
        }
    }

    /// The attempt was answered "blocked", and such a claim leaves nothing at the engine.
    pub(crate) fn leave_nothing(mut self) {
        *self.slot() = None;
    }

    /// From now on it is a grant's.
    pub(super) fn become_granted(&mut self, token: Token) {
        self.granted = true;
        let (client, validity) = (&self.client, &self.claim.validity);
        self.holding =
            Holding::begin(client.engine(), &self.claim.want().name, token, client.runtime.clock(), validity);
        self.keep();
    }

    /// Releases and waits for the confirmation, trying again until then.
    pub(crate) async fn release(&mut self, until: Moment) -> Result<Removed> {
        if let Some(holding) = &self.holding {
            holding.releasing();
        }
        self.client.renewer.forget(&self.claim);
        self.claim.set_released();
        self.claim.validity.give_back();
        let client = Arc::clone(&self.client);
        let clock = client.runtime.clock();
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            // Dropped at any await: `Drop` hands the entry to the cleaner.
            let answer = match self.entry().release() {
                // Engines that answer on the spot need no timer.
                Reply::Ready(answer) => answer,
                coming => clock.within(until, coming).await,
            };
            let error = match answer {
                Some(Ok(left)) => {
                    *self.slot() = None;
                    return Ok(left);
                }
                Some(Err(error)) => error,
                None => Error::new(ErrorKind::Unreachable, Error::NO_ANSWER).on(client.engine()),
            };
            let next = clock.now() + backoff.pause();
            // The cleaner takes over an error that no retry mends. It retries as long as the lease lasts.
            if !error.is_transient() || next >= until {
                let message = "the release was not confirmed; it goes on in the background, and the lock is free at the end of \
                               its lease at the latest";
                let name = self.claim.want().name.clone();
                return Err(Error::new(error.kind(), message).of(name).on(client.engine()).because_of(error));
            }
            clock.sleep_until(next).await;
        }
    }
}

impl Owned {
    /// Leaves nothing of the entry behind, in the background. Returns whether there was one of this process.
    pub(super) fn clean_up(&mut self) -> bool {
        let Some(entry) = self.slot().take() else { return false };
        if self.client.is_forked() {
            // It is the parent's, with all that it stands on.
            std::mem::forget(entry);
            return false;
        }
        self.client.renewer.forget(&self.claim);
        self.claim.validity.give_back();
        let how = if self.granted { Cleanup::Release } else { Cleanup::Withdraw };
        clean_up(entry, &self.claim, how);
        true
    }
}

impl Owned {
    /// The lock was given back.
    pub(crate) fn tell_released(&self, how: &'static str) {
        if let Some(holding) = &self.holding {
            holding.released(how);
        }
    }

    /// The lock was lost, and its release finds that.
    pub(crate) fn tell_lost(&self, why: Loss) {
        if let Some(holding) = &self.holding {
            holding.lost_at_release(why, self.claim.validity.detail());
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.holding.is_none() {
            self.clean_up();
            return;
        }
        let loss = self.claim.validity.loss_at(self.client.runtime.clock().now());
        if self.clean_up() {
            match loss {
                Some(why) => self.tell_lost(why),
                None => self.tell_released("drop"),
            }
        }
    }
}
