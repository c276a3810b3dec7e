//! One claim, as its requests and the rest of the client see it.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use fencepost_core::{Claim, Waiter as News};

use crate::table::session::SessionRow;

pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    /// The session that its row refers to.
    pub(crate) session: OnceLock<Arc<SessionRow>>,
    news: News<State>,
}

#[derive(Default)]
struct State {
    /// Another attempt is worthwhile. Cleared before the statement is sent.
    woken: bool,
    /// It was detached, or its row was removed because it was lost: a row that is missing is no news.
    leaving: bool,
    /// A grant that was not confirmed yet may have been evicted.
    doubtful: bool,
    /// A request for the lock got no reply, and may take effect later.
    unanswered: bool,
    row: ClaimRow,
}

/// The claim's row, as far as the replies tell.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum ClaimRow {
    #[default]
    Unknown,
    Queued(i64),
    Holding {
        in_lock_row: bool,
    },
    /// It holds, and waits in this row of the queue to become exclusive.
    Marked(i64),
    Gone,
}

impl Waiter {
    pub(crate) fn new(claim: Arc<Claim>) -> Arc<Waiter> {
        Arc::new(Waiter { claim, session: OnceLock::new(), news: News::default() })
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

    pub(crate) fn set_leaving(&self) {
        self.news.with(|state| state.leaving = true);
    }

    /// Returns whether a row that is missing is no news.
    pub(crate) fn is_leaving(&self) -> bool {
        self.claim.is_leaving() || self.news.with(|state| state.leaving)
    }

    pub(crate) fn row(&self) -> ClaimRow {
        self.news.with(|state| state.row)
    }

    /// Returns the one before.
    pub(crate) fn set_row(&self, row: ClaimRow) -> ClaimRow {
        self.news.with(|state| std::mem::replace(&mut state.row, row))
    }

    pub(crate) fn set_unanswered(&self) {
        self.news.with(|state| state.unanswered = true);
    }

    pub(crate) fn take_unanswered(&self) -> bool {
        self.news.with(|state| std::mem::take(&mut state.unanswered))
    }

    pub(crate) fn set_doubtful(&self) {
        self.news.with(|state| state.doubtful = true);
    }

    pub(crate) fn take_doubtful(&self) -> bool {
        self.news.with(|state| std::mem::take(&mut state.doubtful))
    }
}
