//! One claim, as the rest of the client sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use fencepost_core::Claim;
use fencepost_core::sync::Mutex;

pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    /// Another attempt is worthwhile. Set before the waker is woken, taken before the statement is sent.
    woken: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// Its release is on its way: a row that is missing is no news.
    leaving: AtomicBool,
    /// A grant that was not confirmed yet may have been evicted.
    doubtful: AtomicBool,
}

impl Waiter {
    pub(crate) fn new(claim: Arc<Claim>) -> Arc<Waiter> {
        Arc::new(Waiter {
            claim,
            woken: AtomicBool::new(false),
            waker: Mutex::default(),
            leaving: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A statement is about to be sent: its reply answers earlier messages. Returns whether there were any.
    pub(crate) fn clear_woken(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.woken.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        *self.waker.lock() = Some(cx.waker().clone());
        // It may have been woken between the look and the waker.
        if self.woken.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns whether its lease is that of its row, and not its session's.
    pub(crate) fn has_own_lease(&self) -> bool {
        self.claim.note.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    pub(crate) fn set_doubtful(&self) {
        self.doubtful.store(true, Ordering::SeqCst);
    }

    pub(crate) fn take_doubtful(&self) -> bool {
        self.doubtful.swap(false, Ordering::SeqCst)
    }
}
