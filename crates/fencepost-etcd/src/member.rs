//! A claim of ours at the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use fencepost_core::{Claim, ClaimRecord, Loss, Validity};

use crate::calm::Run;
use crate::keys;
use crate::lease::Lease;

/// A claim from its first request to its end: what its entry, its lease and the watch know of each other.
pub(crate) struct Member {
    pub(crate) claim: Arc<Claim>,
    pub(crate) number: u64,
    pub(crate) folder: Vec<u8>,
    home: OnceLock<Home>,
    place: Mutex<Place>,
    /// A request that makes the key may still arrive.
    pub(crate) doubt: AtomicBool,
    /// A request that makes or deletes the key may still arrive, or the key is there: its name cannot be used again.
    pub(crate) spent: AtomicBool,
    /// It is being taken back: nothing is asked for any more.
    pub(crate) leaving: AtomicBool,
    /// A request that hangs its key on another lease may have taken effect, or does yet.
    pub(crate) adrift: AtomicBool,
    /// Its key is known to others by a lease's secret: they may release and extend it.
    pub(crate) adopted: AtomicBool,
    /// It is held for long: its key is watched.
    pub(crate) long: AtomicBool,
    /// It found nobody in its folder, after so many others of this client's.
    pub(crate) alone: OnceLock<Run>,
}

/// Its key.
struct Home {
    /// Under which it was made.
    lease: Arc<Lease>,
    key: Vec<u8>,
    value: Vec<u8>,
}

struct Place {
    stand: Stand,
    /// On which its key hangs.
    lease: Option<Arc<Lease>>,
    /// When its key was hung on that. Zero: it was made there.
    hung: i64,
    waker: Option<Waker>,
    /// When the key was made whose holder is evicted, which is heard of before what became of the request that makes it. Zero: none.
    marked: i64,
    /// Who has evicted it, and why.
    evicted_by: Option<Arc<str>>,
}

/// Where a claim stands; numbers are its key's create revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stand {
    /// It has no key, as far as is known.
    Nowhere,
    /// In line.
    Waiting(i64),
    /// At the front of the line, which its entry does not know yet.
    Granted(i64),
    /// Its entry knows.
    Holding(i64),
    /// Its key is gone.
    Gone,
}

impl Stand {
    /// When its key was made, if that is known.
    pub(crate) fn revision(self) -> Option<i64> {
        match self {
            Stand::Waiting(revision) | Stand::Granted(revision) | Stand::Holding(revision) => Some(revision),
            Stand::Nowhere | Stand::Gone => None,
        }
    }
}

impl Member {
    pub(crate) fn new(claim: Arc<Claim>, number: u64, folder: Vec<u8>) -> Member {
        let place = Mutex::new(Place {
            stand: Stand::Nowhere,
            lease: None,
            hung: 0,
            waker: None,
            marked: 0,
            evicted_by: None,
        });
        let [doubt, spent, leaving, adrift, adopted, long] = [false; 6].map(AtomicBool::new);
        Member {
            claim,
            number,
            folder,
            home: OnceLock::new(),
            place,
            doubt,
            spent,
            leaving,
            adrift,
            adopted,
            long,
            alone: OnceLock::new(),
        }
    }

    /// Its key will be made under this lease, unless it has one already. Answers with the lease and the key.
    pub(crate) fn settle(&self, lease: Arc<Lease>) -> (&Arc<Lease>, &[u8]) {
        let home = self.home.get_or_init(|| {
            self.place().lease = Some(Arc::clone(&lease));
            let key = keys::key(&self.folder, lease.id, self.number);
            Home { lease, key, value: ClaimRecord::of(&self.claim).to_bytes() }
        });
        (&home.lease, &home.key)
    }

    /// It has taken up a key that somebody else has made.
    pub(crate) fn adopt(&self, lease: Arc<Lease>, key: Vec<u8>, value: Vec<u8>, at: i64) {
        self.hang(Arc::clone(&lease), at);
        let _ = self.home.set(Home { lease, key, value });
        self.adopted.store(true, Ordering::Relaxed);
    }

    /// The lease that its key is made under, once there is one.
    pub(crate) fn home(&self) -> Option<&Arc<Lease>> {
        self.home.get().map(|home| &home.lease)
    }

    /// Its key, once a request for it may have been sent.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.home.get().map(|home| &*home.key)
    }

    /// What stands in its key.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.home.get().map(|home| home.value.clone()).unwrap_or_default()
    }

    pub(crate) fn stand(&self) -> Stand {
        self.place().stand
    }

    /// On which its key hangs now.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.place().lease.clone()
    }

    /// When its key was last hung on a lease; zero: it hangs where it was made.
    pub(crate) fn hung(&self) -> i64 {
        self.place().hung
    }

    /// Its key was hung on this one at the revision `at`, for certain. Answers with the one before, if that is another.
    pub(crate) fn hang(&self, lease: Arc<Lease>, at: i64) -> Option<Arc<Lease>> {
        self.adrift.store(false, Ordering::Relaxed);
        let mut place = self.place();
        place.hung = at;
        let id = lease.id;
        place.lease.replace(lease).filter(|before| before.id != id)
    }

    /// It stands there now; its entry is woken if it waits. What is gone stays so.
    pub(crate) fn put(&self, stand: Stand) {
        let mut place = self.place();
        if place.stand == Stand::Gone {
            return;
        }
        place.stand = stand;
        let waker = place.waker.take();
        drop(place);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Its lease or its key is gone.
    pub(crate) fn lose(&self, why: Loss) {
        self.lost(|validity| validity.end(why));
    }

    /// The same, with what is known of it.
    pub(crate) fn lose_with(&self, why: Loss, detail: String) {
        self.lost(|validity| validity.end_with(why, detail));
    }

    fn lost(&self, end: impl FnOnce(&Validity)) {
        if self.leaving.load(Ordering::Relaxed) {
            return;
        }
        // In one step: who is about to be told that it holds is told so before this, or not at all.
        let mut place = self.place();
        let before = std::mem::replace(&mut place.stand, Stand::Gone);
        let waker = place.waker.take();
        drop(place);
        if let Stand::Holding(_) = before {
            end(&self.claim.validity);
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whoever holds by the key made at `revision` is evicted: is it this one? (One that does not know yet when its key was made
    /// finds out by [`is_marked`](Member::is_marked).)
    pub(crate) fn mark(&self, revision: i64, by: &str) -> bool {
        let mut place = self.place();
        if revision > place.marked {
            (place.marked, place.evicted_by) = (revision, Some(by.into()));
        }
        place.stand.revision() == Some(revision)
    }

    /// Returns who has evicted it, and why.
    pub(crate) fn evicted_by(&self) -> Arc<str> {
        self.place().evicted_by.clone().unwrap_or_default()
    }

    /// It has been evicted before it knew when its key was made.
    pub(crate) fn is_marked(&self) -> bool {
        let place = self.place();
        place.marked > 0 && place.stand.revision() == Some(place.marked)
    }

    /// Its number cannot be another one's.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed) || self.doubt.load(Ordering::Relaxed)
    }

    /// Ready when it is worth asking how it stands.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut place = self.place();
        if !matches!(place.stand, Stand::Waiting(_)) {
            return Poll::Ready(());
        }
        match &mut place.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
