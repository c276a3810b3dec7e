//! The handle of a client. Its last drop waits for the releases that are under way.

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use crate::client::shared::ClientShared;
use crate::runtime::thread;

/// The longest wait. `Instant` overflows with some longer ones.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A handle of a client: the client itself and its locks have one. Guards and waiting claims have none.
#[derive(Clone)]
pub(crate) struct Handle(Arc<LastHandle>);

struct LastHandle(Arc<ClientShared>);

impl Handle {
    pub(crate) fn new(shared: ClientShared) -> Handle {
        Handle(Arc::new(LastHandle(Arc::new(shared))))
    }
}

impl Deref for Handle {
    type Target = Arc<ClientShared>;

    fn deref(&self) -> &Arc<ClientShared> {
        &self.0.0
    }
}

/// Shows the engine.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine())
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.finish_releases();
    }
}

impl Handle {
    /// Returns whether a guard or a claim of the client is left. Each has a reference, and all handles share one.
    pub(crate) fn has_claims(&self) -> bool {
        Arc::strong_count(&self.0.0) > 1
    }
}

impl ClientShared {
    /// Waits at most `drop_timeout` for the releases and withdrawals under way. Without any it returns at once.
    ///
    /// The caller may block the only thread of its runtime here. So the engine first leaves that runtime. The client's own thread
    /// never waits here: it does the work.
    fn finish_releases(&self) {
        let cleaner = self.runtime.cleaner();
        let has_thread = self.thread.is_some() && !thread::is_own();
        if self.drop_timeout.is_zero() || !has_thread || self.is_forked() || self.is_closed() {
            return;
        }
        if cleaner.backlog() == 0 {
            return;
        }
        self.backend.leave_caller_runtime();
        let until = Instant::now() + self.drop_timeout.min(LONGEST);
        let (wakes, woken) = mpsc::sync_channel(1);
        let waker = Waker::from(Arc::new(Wakes(wakes)));
        let mut idle = pin!(cleaner.idle());
        while idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            if woken.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
                tracing::debug!("the last client was dropped; its releases go on while the process lives");
                return;
            }
        }
    }
}

/// Wakes the thread that drops the last handle. Its parking is not used: the token of that belongs to the caller.
struct Wakes(SyncSender<()>);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        // A full channel has woken it already. A closed one waits no more.
        let _ = self.0.try_send(());
    }
}
