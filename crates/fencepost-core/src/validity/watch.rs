//! Details of a loss, failed renewals and watchers: few of many validities have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Waker;

use crate::error::{Error, ErrorKind};
use crate::time::{Clock, Moment};
use crate::validity::failure::RenewalFailure;
use crate::validity::loss::{GrantObserver, Loss, State};
use crate::validity::record::{Optional, Validity};

impl Validity {
    /// Makes the error of the lost grant of `resource`.
    pub(crate) fn loss_error(&self, resource: impl Into<Arc<str>>, loss: Loss) -> Error {
        if loss == Loss::Forked {
            return Error::new(ErrorKind::Closed, Error::FORKED).of(resource);
        }
        let error = match self.detail() {
            None => Error::lost(resource, loss),
            Some(detail) => Error::lost_as(resource, loss, &format_args!("{loss} ({detail})")),
        };
        match self.trouble().filter(|_| matches!(loss, Loss::Expired | Loss::SessionEnded)) {
            None => error,
            Some(trouble) => {
                let message = format!("{}; the last renewal failed: {trouble}", error.message());
                error.saying(&message)
            }
        }
    }

    /// Tells `observer` what happens to the grant from now on. Can be said once.
    pub(crate) fn observe(&self, observer: Arc<dyn GrantObserver>) {
        let _ = self.optional().observer.set(observer);
    }

    pub(super) fn observer(&self) -> Option<&Arc<dyn GrantObserver>> {
        self.optional.get()?.observer.get()
    }

    /// A renewal of the grant was not confirmed: the observer is told, and nothing else happens.
    pub(crate) fn tell_renewal_failed(&self, trouble: Option<&RenewalFailure>) {
        if let Some(observer) = self.observer() {
            let why = trouble.map_or("the engine did not confirm it", |trouble| &trouble.why);
            observer.renewal_failed(why, self.is_in_doubt());
        }
    }

    /// Returns whether renewals are known to fail: see [`doubt`](Validity::doubt).
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.suspect.load(Ordering::Acquire) == 0
    }

    /// Ends the validity as [`end`](Validity::end) does. `detail` says more than the kind of loss: which key is gone, or who evicted and why.
    pub fn end_with(&self, why: Loss, detail: impl Into<Arc<str>>) {
        let detail = detail.into();
        if !detail.is_empty() {
            let _ = self.optional().detail.set((why, detail));
        }
        self.end(why);
    }

    /// Returns what the engine knows of the loss beside its kind: its own, or that of a validity that it rests on.
    pub fn detail(&self) -> Option<Arc<str>> {
        let ended = self.ended()?;
        let own =
            self.optional.get().and_then(|optional| optional.detail.get()).filter(|(why, _)| *why == ended);
        let rests = || self.rest()?.of().iter().find(|validity| validity.ended() == Some(ended))?.detail();
        own.map(|(_, detail)| Arc::clone(detail)).or_else(rests)
    }

    /// [`doubt`](Validity::doubt), with what the engine said, if it said anything.
    pub fn renewal_failed(&self, trouble: Option<RenewalFailure>) {
        match trouble {
            Some(trouble) => self.optional().status().trouble(trouble),
            None => self.forget_trouble(),
        }
        self.doubt();
    }

    /// A renewal was confirmed, of the grant or of its position in the queue.
    pub(crate) fn forget_trouble(&self) {
        if let Some(optional) = self.optional.get() {
            let mut status = optional.status();
            (status.stranded, status.trouble) = (None, None);
        }
    }

    /// A position in the queue could not be renewed. Its waiter is woken when that begins.
    pub(crate) fn set_unrenewed(&self, since: Moment, trouble: RenewalFailure) {
        let mut status = self.optional().status();
        status.trouble(trouble);
        let begins = status.stranded.is_none();
        status.stranded.get_or_insert(since);
        drop(status);
        if begins {
            self.wake();
        }
    }

    /// Returns since when a position in the queue cannot be renewed. `None` for a grant, because trouble in the queue does not count after it.
    pub(crate) fn unrenewed_since(&self) -> Option<Moment> {
        let since = self.optional.get()?.status().stranded;
        // A round of renewals that began before the grant may note its failure after it.
        since.filter(|_| !self.is_confirmed())
    }

    /// Returns why a position in the queue cannot be renewed.
    pub(crate) fn why_unrenewed(&self) -> Option<RenewalFailure> {
        self.unrenewed_since()?;
        self.optional.get()?.status().trouble.clone()
    }

    /// Why renewals fail, if none was confirmed since: its own, or those of what it rests on.
    pub fn trouble(&self) -> Option<Arc<str>> {
        if self.is_in_doubt()
            && let Some(trouble) = self.optional.get().and_then(|optional| optional.status().why())
        {
            return Some(trouble);
        }
        self.rest().and_then(|rest| rest.of().iter().find_map(|validity| validity.trouble()))
    }

    /// Something that can be woken when the validity is ended, or given back. (Running out by the clock wakes nobody.) In a process
    /// that was forked off the one that made `clock`, it does nothing.
    pub fn watch<'a>(&'a self, clock: &'a Clock) -> Watch<'a> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Watch { validity: self, clock, key: COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn set_watch(&self, key: u64, waker: Option<&Waker>) {
        let optional = match waker {
            Some(_) => self.optional(),
            None => match self.optional.get() {
                Some(optional) => &**optional,
                None => return,
            },
        };
        let mut status = optional.status();
        let all = &mut status.watchers;
        let known = all.iter().position(|(known, _)| *known == key);
        match (known, waker) {
            (Some(at), Some(waker)) => all[at].1.clone_from(waker),
            (None, Some(waker)) => all.push((key, waker.clone())),
            (Some(at), None) => drop(all.swap_remove(at)),
            (None, None) => {}
        }
        drop(status);
        // The caller that ends the validity has seen this watcher, or the watcher sees the end with its next check: see `wake`.
        fence(Ordering::SeqCst);
        if let Some(rest) = self.rest() {
            rest.of().iter().for_each(|validity| validity.set_watch(key, waker));
        }
    }

    pub(super) fn optional(&self) -> &Optional {
        self.optional.get_or_init(Box::default)
    }

    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        let Some(optional) = self.optional.get() else { return };
        let watchers = std::mem::take(&mut optional.status().watchers);
        watchers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// See [`Validity::watch`]. Dropped, it wakes nobody any more.
#[derive(Debug)]
pub struct Watch<'a> {
    validity: &'a Validity,
    clock: &'a Clock,
    key: u64,
}

impl Watch<'_> {
    /// Wakes `waker` when the validity is ended, or given back; at once if it is.
    pub fn set(&mut self, waker: &Waker) {
        self.register(Some(waker));
        if self.validity.end.get().is_some() || self.validity.is_given_back() {
            waker.wake_by_ref();
        }
    }

    /// Wakes `waker` as [`set`](Watch::set) does, and returns how the grant stands for those who look on.
    pub(super) fn seen(&mut self, waker: &Waker) -> State {
        self.set(waker);
        self.validity.seen(self.clock)
    }

    fn register(&self, waker: Option<&Waker>) {
        // A thread that is not there may have the lock.
        if !self.clock.is_forked() {
            self.validity.set_watch(self.key, waker);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.register(None);
    }
}
