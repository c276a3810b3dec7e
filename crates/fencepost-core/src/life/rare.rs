//! What few of many lives have: those that are watched, or could not be renewed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;

use super::Life;
use crate::time::Moment;

#[derive(Default)]
pub(super) struct Rare {
    /// Whom to wake when `end` is set.
    pub(super) watchers: Vec<(u64, Waker)>,
    /// Why the last renewal failed. Of no meaning unless it is in [`doubt`](Life::doubt), or stranded.
    trouble: Option<Arc<str>>,
    /// A place in line that is not renewed: since when.
    stranded: Option<Moment>,
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.watchers.is_empty() && self.trouble.is_none() && self.stranded.is_none()
    }
}

impl Life {
    /// [`doubt`](Life::doubt), with what the engine said, if it said anything.
    pub fn doubt_by(&self, trouble: Option<Arc<str>>) {
        let mut rare = self.rare();
        if trouble.is_some() || rare.is_some() {
            rare.get_or_insert_default().trouble = trouble;
        }
        drop(rare);
        self.doubt();
    }

    /// A place in line could not be renewed. Who waits there is woken when that begins.
    pub(crate) fn strand(&self, now: Moment, trouble: Arc<str>) {
        let mut rare = self.rare();
        let known = rare.get_or_insert_default();
        known.trouble = Some(trouble);
        let begins = known.stranded.is_none();
        known.stranded.get_or_insert(now);
        drop(rare);
        if begins {
            self.wake();
        }
    }

    /// The engine knows the place in line.
    pub(crate) fn unstrand(&self) {
        if let Some(rare) = &mut *self.rare() {
            rare.stranded = None;
        }
    }

    /// Since when a place in line cannot be renewed.
    pub(crate) fn stranded(&self) -> Option<Moment> {
        self.rare().as_ref()?.stranded
    }

    /// Why not.
    pub(crate) fn why_stranded(&self) -> Option<Arc<str>> {
        let rare = self.rare();
        let rare = rare.as_ref()?;
        rare.stranded.and(rare.trouble.clone())
    }

    /// Why the last renewal failed, if none was confirmed since: its own, or that of what it rests on.
    pub fn trouble(&self) -> Option<Arc<str>> {
        if self.suspect.load(Ordering::Acquire) == 0
            && let Some(trouble) = self.rare().as_ref().and_then(|rare| rare.trouble.clone())
        {
            return Some(trouble);
        }
        self.rest().and_then(|rest| rest.of().iter().find_map(|life| life.trouble()))
    }

    /// Something that can be woken when the life is ended. (Running out by the clock wakes nobody.)
    pub fn watch(&self) -> Watch<'_> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Watch { life: self, key: COUNT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn set_watch(&self, key: u64, waker: Option<&Waker>) {
        let mut rare = self.rare();
        let all = &mut rare.get_or_insert_default().watchers;
        let known = all.iter().position(|(known, _)| *known == key);
        match (known, waker) {
            (Some(at), Some(waker)) => all[at].1.clone_from(waker),
            (None, Some(waker)) => all.push((key, waker.clone())),
            (Some(at), None) => drop(all.swap_remove(at)),
            (None, None) => {}
        }
        if rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            *rare = None;
        }
        drop(rare);
        if let Some(rest) = self.rest() {
            rest.of().iter().for_each(|life| life.set_watch(key, waker));
        }
    }

    pub(super) fn rare(&self) -> MutexGuard<'_, Option<Box<Rare>>> {
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        let watchers = self.rare().as_mut().map(|rare| std::mem::take(&mut rare.watchers));
        watchers.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }
}

/// See [`Life::watch`]. Dropped, it wakes nobody any more.
#[derive(Debug)]
pub struct Watch<'a> {
    life: &'a Life,
    key: u64,
}

impl Watch<'_> {
    /// Wakes `waker` when the life is ended; at once if it is.
    pub fn set(&mut self, waker: &Waker) {
        self.life.set_watch(self.key, Some(waker));
        if self.life.end.get().is_some() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.life.set_watch(self.key, None);
    }
}
