//! What few of many lives have: those that rest on others, are watched, or could not be renewed.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;

use super::{Life, Loss};
use crate::error::{Error, ErrorKind};
use crate::time::Moment;

#[derive(Default)]
pub(super) struct Rare {
    /// What else must live.
    pub(super) rest: OnceLock<Rest>,
    /// What the engine knows of a loss beside its kind.
    detail: OnceLock<(Loss, Arc<str>)>,
    plight: Mutex<Plight>,
}

/// So many of these must live.
pub(super) struct Rest {
    pub(super) q: usize,
    pub(super) of: RwLock<Vec<Arc<Life>>>,
}

/// Who cares, and what is wrong.
#[derive(Default)]
pub(super) struct Plight {
    /// Whom to wake when `end` is set, or it is given back.
    pub(super) watchers: Vec<(u64, Waker)>,
    /// Why renewals fail. Of no meaning unless it is in [`doubt`](Life::doubt), or stranded.
    trouble: Option<Doubt>,
    /// A place in line that is not renewed: since when.
    stranded: Option<Moment>,
}

/// Why a renewal failed.
#[derive(Clone, Debug)]
pub struct Doubt {
    /// In words.
    pub why: Arc<str>,
    /// The kind of the engine's error.
    pub kind: ErrorKind,
    /// It may pass by itself.
    pub transient: bool,
}

impl Doubt {
    /// What the engine said to a renewal.
    pub fn of(error: Error) -> Doubt {
        let error = error.without_effect();
        Doubt { why: error.to_string().into(), kind: error.kind(), transient: error.is_transient() }
    }
}

impl Plight {
    /// Shortly before the end of a lease there is no time left for an answer: what does not pass by itself says more, and stays.
    fn trouble(&mut self, trouble: Doubt) {
        if !trouble.transient || self.trouble.as_ref().is_none_or(|known| known.transient) {
            self.trouble = Some(trouble);
        }
    }

    fn why(&self) -> Option<Arc<str>> {
        self.trouble.as_ref().map(|trouble| Arc::clone(&trouble.why))
    }
}

impl Rest {
    pub(super) fn new(q: usize, of: Vec<Arc<Life>>) -> Rest {
        Rest { q, of: RwLock::new(of) }
    }

    pub(super) fn of(&self) -> RwLockReadGuard<'_, Vec<Arc<Life>>> {
        self.of.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rare {
    pub(super) fn plight(&self) -> MutexGuard<'_, Plight> {
        self.plight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Life {
    /// Ends the life as [`end`](Life::end) does. `detail` says more than the kind of loss: which key is gone, or who evicted and why.
    pub fn end_with(&self, why: Loss, detail: impl Into<Arc<str>>) {
        let detail = detail.into();
        if !detail.is_empty() {
            let _ = self.rare().detail.set((why, detail));
        }
        self.end(why);
    }

    /// Returns what the engine knows of the loss beside its kind: its own, or that of a life that it rests on.
    pub fn detail(&self) -> Option<Arc<str>> {
        let ended = self.ended()?;
        let own = self.rare.get().and_then(|rare| rare.detail.get()).filter(|(why, _)| *why == ended);
        let rests = || self.rest()?.of().iter().find(|life| life.ended() == Some(ended))?.detail();
        own.map(|(_, detail)| Arc::clone(detail)).or_else(rests)
    }

    /// [`doubt`](Life::doubt), with what the engine said, if it said anything.
    pub fn doubt_by(&self, trouble: Option<Doubt>) {
        match trouble {
            Some(trouble) => self.rare().plight().trouble(trouble),
            None => self.forget_trouble(),
        }
        self.doubt();
    }

    /// A renewal was confirmed.
    pub(super) fn forget_trouble(&self) {
        if let Some(rare) = self.rare.get() {
            rare.plight().trouble = None;
        }
    }

    /// A place in line could not be renewed. Who waits there is woken when that begins.
    pub(crate) fn strand(&self, since: Moment, trouble: Doubt) {
        let mut plight = self.rare().plight();
        plight.trouble(trouble);
        let begins = plight.stranded.is_none();
        plight.stranded.get_or_insert(since);
        drop(plight);
        if begins {
            self.wake();
        }
    }

    /// The engine knows the place in line.
    pub(crate) fn unstrand(&self) {
        if let Some(rare) = self.rare.get() {
            let mut plight = rare.plight();
            (plight.stranded, plight.trouble) = (None, None);
        }
    }

    /// Since when a place in line cannot be renewed.
    pub(crate) fn stranded(&self) -> Option<Moment> {
        self.rare.get()?.plight().stranded
    }

    /// Returns why a place in line cannot be renewed.
    pub(crate) fn why_stranded(&self) -> Option<Doubt> {
        let plight = self.rare.get()?.plight();
        plight.stranded.and(plight.trouble.clone())
    }

    /// Why renewals fail, if none was confirmed since: its own, or those of what it rests on.
    pub fn trouble(&self) -> Option<Arc<str>> {
        if self.suspect.load(Ordering::Acquire) == 0
            && let Some(trouble) = self.rare.get().and_then(|rare| rare.plight().why())
        {
            return Some(trouble);
        }
        self.rest().and_then(|rest| rest.of().iter().find_map(|life| life.trouble()))
    }

    /// Something that can be woken when the life is ended, or given back. (Running out by the clock wakes nobody.)
    pub fn watch(&self) -> Watch<'_> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Watch { life: self, key: COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn set_watch(&self, key: u64, waker: Option<&Waker>) {
        let rare = match waker {
            Some(_) => self.rare(),
            None => match self.rare.get() {
                Some(rare) => &**rare,
                None => return,
            },
        };
        let mut plight = rare.plight();
        let all = &mut plight.watchers;
        let known = all.iter().position(|(known, _)| *known == key);
        match (known, waker) {
            (Some(at), Some(waker)) => all[at].1.clone_from(waker),
            (None, Some(waker)) => all.push((key, waker.clone())),
            (Some(at), None) => drop(all.swap_remove(at)),
            (None, None) => {}
        }
        drop(plight);
        // Whoever ends the life has seen the watcher, or it is over by now for whoever looks next: see `wake`.
        fence(Ordering::SeqCst);
        if let Some(rest) = self.rest() {
            rest.of().iter().for_each(|life| life.set_watch(key, waker));
        }
    }

    pub(super) fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        let Some(rare) = self.rare.get() else { return };
        let watchers = std::mem::take(&mut rare.plight().watchers);
        watchers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// See [`Life::watch`]. Dropped, it wakes nobody any more.
#[derive(Debug)]
pub struct Watch<'a> {
    life: &'a Life,
    key: u64,
}

impl Watch<'_> {
    /// Wakes `waker` when the life is ended, or given back; at once if it is.
    pub fn set(&mut self, waker: &Waker) {
        self.life.set_watch(self.key, Some(waker));
        if self.life.end.get().is_some() || self.life.is_given_back() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.life.set_watch(self.key, None);
    }
}
