//! One claim, as the rest of the client sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fencepost_core::{Claim, Waiter as News};

pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    news: News<State>,
}

#[derive(Default)]
struct State {
    /// Another attempt is worthwhile. Cleared before the statement is sent.
    woken: bool,
    /// Its release is on its way: a row that is missing is no news.
    leaving: bool,
    /// A grant that was not confirmed yet may have been evicted.
    doubtful: bool,
}

impl Waiter {
    pub(crate) fn new(claim: Arc<Claim>) -> Arc<Waiter> {
        Arc::new(Waiter { claim, news: News::default() })
    }

    pub(crate) fn wake(&self) {
        self.news.tell(|state| state.woken = true);
    }

    /// A statement is about to be sent: its reply answers earlier messages. Returns whether there were any.
    pub(crate) fn clear_woken(&self) -> bool {
        self.news.with(|state| std::mem::take(&mut state.woken))
    }

    pub(crate) fn poll_woken(&self, cx: &Context<'_>) -> Poll<()> {
        self.news.poll(cx, |state| state.woken)
    }

    /// Returns whether its lease is that of its row, and not its session's.
    pub(crate) fn has_own_lease(&self) -> bool {
        self.claim.note.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn set_leaving(&self) {
        self.news.with(|state| state.leaving = true);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.news.with(|state| state.leaving)
    }

    pub(crate) fn set_doubtful(&self) {
        self.news.with(|state| state.doubtful = true);
    }

    pub(crate) fn take_doubtful(&self) -> bool {
        self.news.with(|state| std::mem::take(&mut state.doubtful))
    }
}
