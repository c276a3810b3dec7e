//! The entries of this client: whom a ring or an eviction is for.

use fencepost_core::sync::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use fencepost_core::{Claim, Loss};

/// One entry, as the rest of the client sees it.
pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    /// A detached lease: its row names no process.
    pub(crate) attached: bool,
    /// Its own release or withdrawal is on its way: a row that is missing is no news.
    releasing: AtomicBool,
    /// Asked to look again, and has not yet. Set before the waker is woken, taken before the question is sent.
    woken: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// The ring came from the watch on a file: its lock may fall a moment later.
    file_closed: AtomicBool,
    /// Only holders stood before it when it last looked.
    first: AtomicBool,
    /// Rounds of renewal while it waited.
    rounds: AtomicU32,
}

impl Waiter {
    pub(crate) fn new(claim: Arc<Claim>, attached: bool) -> Waiter {
        Waiter {
            claim,
            attached,
            releasing: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            waker: Mutex::default(),
            file_closed: AtomicBool::new(false),
            first: AtomicBool::new(false),
            rounds: AtomicU32::new(0),
        }
    }

    pub(crate) fn id(&self) -> [u8; 16] {
        self.claim.id.as_u128().to_be_bytes()
    }

    pub(crate) fn name(&self) -> &str {
        self.claim.want().name.as_str()
    }

    pub(crate) fn start_release(&self) {
        self.releasing.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.releasing.load(Ordering::SeqCst)
    }

    /// Called once a round while it waits: is the line to be looked at? Always for the first in line, else each third time.
    pub(crate) fn is_poll_due(&self) -> bool {
        self.first.load(Ordering::Relaxed) || self.rounds.fetch_add(1, Ordering::Relaxed) % 3 == 2
    }

    pub(crate) fn set_first(&self, first: bool) {
        self.first.store(first, Ordering::Relaxed);
    }

    /// It is worth asking again.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A process before it has closed its side file.
    pub(crate) fn wake_file_closed(&self) {
        self.file_closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns whether the watched file was closed since the last call.
    pub(crate) fn take_file_closed(&self) -> bool {
        self.file_closed.swap(false, Ordering::SeqCst)
    }

    /// A question is about to be sent: rings from before it are answered by it.
    pub(crate) fn clear_woken(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }

    pub(crate) fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.woken.swap(false, Ordering::SeqCst) {
            return Poll::Ready(());
        }
        *self.waker.lock() = Some(cx.waker().clone());
        // Rung between the look and the waker.
        if self.woken.swap(false, Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// All entries of a client, by claim id.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<[u8; 16], Arc<Waiter>, BuildHasherDefault<IdHasher>>>);

impl Waiters {
    pub(crate) fn insert(&self, waiter: Arc<Waiter>) {
        let id = waiter.id();
        self.map().insert(id, waiter);
    }

    /// Removes the waiter of an entry, unless another entry has the id by now.
    pub(crate) fn remove(&self, waiter: &Arc<Waiter>) {
        let id = waiter.id();
        let mut map = self.map();
        if map.get(&id).is_some_and(|known| Arc::ptr_eq(known, waiter)) {
            let removed = map.remove(&id);
            drop(map);
            drop(removed);
        }
    }

    pub(crate) fn get(&self, id: &[u8; 16]) -> Option<Arc<Waiter>> {
        self.map().get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Waiter>> {
        self.map().values().cloned().collect()
    }

    pub(crate) fn wake(&self, id: &[u8; 16]) {
        if let Some(waiter) = self.get(id) {
            waiter.wake();
        }
    }

    /// An operator has evicted it. `by` says who and why.
    pub(crate) fn evict(&self, id: &[u8; 16], by: &str) {
        if let Some(waiter) = self.get(id) {
            waiter.claim.validity.end_with(Loss::Evicted, by);
            waiter.wake();
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<[u8; 16], Arc<Waiter>, BuildHasherDefault<IdHasher>>> {
        self.0.lock()
    }
}

/// Claim ids are spread already; nobody chooses them from outside.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}
