//! An entry that leaves nothing behind when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::claim::Claim;
use crate::backend::{Removed, Renewal, Reply};
use crate::client::shared::ClientShared;
use crate::entry::Entry;
use crate::entry::place::{How, Leave};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::telemetry::Holding;
use crate::time::{Backoff, DueKey, Moment};
use crate::token::Token;
use crate::validity::{Loss, State};

/// An entry and the duty to leave nothing of it behind: dropped, it goes to the cleaner.
pub(crate) struct Owned {
    pub(super) client: Arc<ClientShared>,
    pub(super) claim: Arc<Claim>,
    /// An entry is not `Sync`, and a guard has to be: the future of `lost` borrows it. Nobody locks this mutex: it is reached
    /// through `&mut` alone, see [`slot`](Owned::slot).
    entry: Mutex<Option<Entry>>,
    /// `None`: it was never lent.
    pub(super) lent: Option<Arc<LentEntry>>,
    granted: bool,
    /// Reports the end of the grant. `None`: nobody listens.
    holding: Option<Arc<Holding>>,
    /// `None`: it is held for as long as its user likes.
    limits: Option<Box<Limits>>,
    /// The client's own thread has the entry, until an upgrade that was given up is undone.
    pub(super) undoing: Option<Undoing>,
}

/// How long a grant is held at least and at most.
struct Limits {
    least: Moment,
    most: Option<Moment>,
    /// Under which the client ends it then.
    key: Option<DueKey>,
}

/// The entry, while the client's own thread may take it, or has brought it back.
#[derive(Default)]
pub(super) struct LentEntry(Mutex<Option<Entry>>);

impl LentEntry {
    /// Lends the entry, unless its longest time has ended, so that nobody takes it any more: it is released then.
    pub(super) fn put(&self, entry: Entry, claim: &Claim) {
        let mut lent = self.0.lock();
        *lent = Some(entry);
        let ended = lent.take_if(|_| claim.validity.ended() == Some(Loss::MaxHold));
        drop(lent);
        // Dropped when the slot is free again, because its cleanup may wake others.
        drop(ended);
    }

    fn take(&self) -> Option<Entry> {
        self.0.lock().take()
    }
}

/// An upgrade that is being undone: see [`undo_upgrade`](Owned::undo_upgrade).
pub(super) struct Undoing {
    /// Tells how it went, when the entry is back.
    pub(super) done: oneshot::Receiver<Result<()>>,
    /// Dropped, it brings the entry back at once.
    pub(super) stop: Option<oneshot::Sender<()>>,
}

impl Owned {
    pub(crate) fn enter(client: &Arc<ClientShared>, claim: Arc<Claim>) -> Owned {
        let entry = client.entry(&claim, How::Enter);
        Owned::new(client, claim, Some(entry), false)
    }

    /// A detached lease that was taken up.
    pub(super) fn attached(client: &Arc<ClientShared>, claim: Arc<Claim>, entry: Entry) -> Owned {
        Owned::new(client, claim, Some(entry), true)
    }

    /// A detached lease that is to leave in this way.
    pub(crate) fn detached(client: &Arc<ClientShared>, claim: Arc<Claim>, how: Leave) -> Owned {
        let entry = client.entry(&claim, How::Attach);
        Owned::new(client, claim, Some(entry), how == Leave::Release)
    }

    fn new(client: &Arc<ClientShared>, claim: Arc<Claim>, entry: Option<Entry>, granted: bool) -> Owned {
        let leaves = if granted { Leave::Release } else { Leave::Withdraw };
        let entry = entry.map(|entry| entry.on_drop(Some(leaves)));
        let (client, entry) = (Arc::clone(client), Mutex::new(entry));
        Owned { client, claim, entry, lent: None, granted, holding: None, limits: None, undoing: None }
    }

    pub(crate) fn entry(&mut self) -> &mut Entry {
        self.slot().as_mut().expect("the entry is there until it is given away")
    }

    pub(super) fn slot(&mut self) -> &mut Option<Entry> {
        let slot = self.entry.get_mut();
        if let (None, Some(lent)) = (&slot, &self.lent) {
            *slot = lent.take();
        }
        slot
    }

    /// Limits how long the grant is held, from now on.
    pub(crate) fn limit(&mut self, at_least: Option<Duration>, max_hold: Option<Duration>) {
        if at_least.is_none() && max_hold.is_none() {
            return;
        }
        let now = self.client.runtime.clock().now();
        let least = at_least.map_or(Moment::ZERO, |least| now + least);
        let most = max_hold.map(|most| now + most);
        self.limits = Some(Box::new(Limits { least, most, key: None }));
    }

    /// Lends the entry to the client, which ends a grant that has been held for its longest time. The holder is told first.
    pub(super) fn lend(&mut self) {
        let Some(limits) = &mut self.limits else { return };
        let Some(most) = limits.most.filter(|_| self.granted) else { return };
        let lent = self.lent.get_or_insert_default();
        if limits.key.is_none() {
            let (lent, claim) = (Arc::downgrade(lent), Arc::clone(&self.claim));
            let renewer = self.client.renewer.clone();
            let end = move || {
                claim.validity.end(Loss::MaxHold);
                renewer.forget(&claim);
                drop(lent.upgrade().and_then(|lent| lent.take()));
            };
            limits.key = Some(self.client.deadlines.add(most, Box::new(end)));
        }
        // An upgrade that is being undone has the entry and may bring it back at any moment, so what is not here is not put there.
        if let Some(entry) = self.entry.get_mut().take() {
            lent.put(entry, &self.claim);
        }
    }

    /// Holds the grant for its least time, in the background, instead of ending it now. Returns whether it does.
    pub(super) fn hold_for_least(&mut self) -> bool {
        let Some(least) = self.limits.as_ref().map(|limits| limits.least) else { return false };
        let clock = self.client.runtime.clock();
        if clock.now() >= least || !self.granted || self.client.check_open().is_err() {
            return false;
        }
        if !self.claim.is_valid() {
            return false;
        }
        self.drop_limits();
        let entry = self.slot().take();
        self.claim.validity.give_back();
        // The entry keeps what its drop does, because a grant that others may have taken up stays after this hold, too.
        let held = Owned {
            client: Arc::clone(&self.client),
            claim: Arc::clone(&self.claim),
            entry: Mutex::new(entry),
            lent: self.lent.take(),
            granted: true,
            holding: self.holding.take(),
            limits: None,
            undoing: self.undoing.take(),
        };
        // The client's close drops it sooner.
        self.client.deadlines.add(least, Box::new(move || drop(held)));
        true
    }

    /// Takes the entry back for good.
    pub(super) fn drop_limits(&mut self) {
        self.slot();
        if let Some(key) = self.limits.take().and_then(|limits| limits.key) {
            self.client.deadlines.remove(key);
        }
    }

    /// Returns what renews the grant. `None`: nothing has to, or the grant is over.
    pub(super) fn renewal(&mut self) -> Option<Renewal> {
        let renewal = self.slot().as_ref().and_then(|entry| entry.renewal());
        self.lend();
        renewal
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(super) fn state(&self) -> State {
        self.claim.validity.state(self.client.runtime.clock().now())
    }

    /// Has the renewer keep the entry alive from now on, queued or holding.
    pub(crate) fn schedule_renewal(&mut self) {
        if self.granted && !self.claim.renewed {
            // It was renewed while it was queued. Its lease is not renewed.
            self.client.renewer.forget(&self.claim);
        } else if let Some(renewal) = self.slot().as_ref().and_then(|entry| entry.renewal()) {
            self.client.renewer.schedule(renewal);
        }
        self.lend();
    }

    /// Leaves the queue, if the engine confirms it by `until`. Otherwise the drop goes on.
    pub(crate) async fn withdraw(&mut self, until: Moment) {
        self.client.renewer.forget(&self.claim);
        let client = Arc::clone(&self.client);
        // Dropped here, it has left or not: the drop of `self` withdraws again.
        if let Some(Ok(_)) = client.runtime.clock().within(until, self.entry().withdraw()).await {
            *self.slot() = None;
        }
    }

    /// From now on it is a grant's.
    pub(super) fn become_granted(&mut self, token: Token) {
        self.granted = true;
        if let Some(entry) = self.slot() {
            entry.set_on_drop(Some(Leave::Release));
        }
        let (client, validity) = (&self.client, &self.claim.validity);
        self.holding =
            Holding::begin(client.engine(), &self.claim.want().name, token, client.runtime.clock(), validity);
        self.schedule_renewal();
    }

    /// From now on its grant has this token.
    pub(super) fn become_upgraded(&mut self, token: Token) {
        if let Some(holding) = &self.holding {
            holding.set_token(token);
        }
        self.schedule_renewal();
    }

    /// It is to leave nothing behind, not even a run that the engine keeps.
    pub(super) fn become_withdrawn(&mut self) {
        self.drop_limits();
        self.granted = false;
        if let Some(entry) = self.slot() {
            entry.set_on_drop(Some(Leave::Withdraw));
        }
    }

    /// Releases or withdraws the claim and waits for the confirmation, trying again until then.
    pub(crate) async fn leave(&mut self, how: Leave, until: Moment) -> Result<Removed> {
        if let Some(holding) = &self.holding {
            holding.releasing();
        }
        self.client.renewer.forget(&self.claim);
        self.claim.validity.give_back();
        let client = Arc::clone(&self.client);
        let clock = client.runtime.clock();
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let called_back = self.call_back(until).await;
        called_back.map_err(|error| error.of(self.claim.want().name.clone()).on(client.engine()))?;
        loop {
            // The client took it at the end of its longest time.
            let Some(entry) = self.slot() else { return Ok(Removed::Nothing) };
            // Dropped at any await: `Drop` hands the entry to the cleaner.
            let answer = match entry.remove(how) {
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
                None => match entry.removed().filter(|_| how == Leave::Release) {
                    // Only a note on its run is missing, which the drop goes on with.
                    Some(removed) => return Ok(removed),
                    None => Error::no_answer().on(client.engine()),
                },
            };
            // An earlier request may still have taken effect, although this one had none.
            let error = if entry.may_have_left() { error.unknown() } else { error };
            let next = clock.now() + backoff.pause();
            // The cleaner takes over an error that no retry mends. It retries as long as the lease lasts.
            if !error.is_transient() || next >= until {
                let message =
                    "the release was not confirmed; the lock is free at the end of its lease at the latest";
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
        if self.client.is_forked() {
            // It is the parent's, with all that it stands on.
            let entry = (self.entry.get_mut().take(), self.lent.take());
            std::mem::forget((entry, self.limits.take(), self.undoing.take()));
            return false;
        }
        if self.hold_for_least() {
            return false;
        }
        self.drop_limits();
        let is_away = self.undoing.take().is_some();
        let entry = self.slot().take();
        if entry.is_none() && !is_away {
            return false;
        }
        self.client.renewer.forget(&self.claim);
        self.claim.validity.give_back();
        // An entry that is away is dropped when it finds no slot.
        self.lent = None;
        drop(entry);
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
        // In a forked process nothing is told, and a thread that does not exist there may hold the lock of the validity.
        if self.holding.is_none() || self.client.is_forked() {
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
