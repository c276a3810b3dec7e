//! The guards of the streams of this copy, which the callers' leases end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{DetachedLease, Guard, GuardView, Name};
use tokio::sync::oneshot;

/// The guards of streams. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Guards(Arc<Mutex<HashMap<Name, Vec<Kept>>>>);

struct Kept {
    guard: Guard,
    lease: DetachedLease,
    /// Dropped with the guard.
    _taken: oneshot::Sender<()>,
}

/// A stream's part in its guard. Dropped, the guard is released, unless a request to release its lease has taken it.
pub(crate) struct Held {
    guards: Guards,
    pub(crate) lease: DetachedLease,
    pub(crate) view: GuardView,
    taken: oneshot::Receiver<()>,
}

impl Guards {
    /// Keeps the guard of a stream.
    ///
    /// # Errors
    /// The engine has no leases.
    pub(crate) fn keep(&self, guard: Guard) -> fencepost_core::Result<Held> {
        let (lease, view) = (guard.to_lease()?, guard.view());
        let (sender, taken) = oneshot::channel();
        let kept = Kept { guard, lease: lease.clone(), _taken: sender };
        self.0.lock().entry(lease.name().clone()).or_default().push(kept);
        Ok(Held { guards: self.clone(), lease, view, taken })
    }

    /// Takes the guard that this lease names. `None`: no stream of this copy holds it.
    pub(crate) fn take(&self, lease: &DetachedLease) -> Option<Guard> {
        let mut guards = self.0.lock();
        let Entry::Occupied(mut of_lock) = guards.entry(lease.name().clone()) else { return None };
        let at = of_lock.get().iter().position(|kept| kept.lease.is_of_same_grant(lease))?;
        let kept = of_lock.get_mut().swap_remove(at);
        if of_lock.get().is_empty() {
            of_lock.remove();
        }
        Some(kept.guard)
    }
}

impl Held {
    /// Completes when a request to release the lease has taken the guard.
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    pub(crate) async fn taken(&mut self) {
        if !self.taken.is_terminated() {
            let _ = (&mut self.taken).await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The release begins when the table is free again.
        drop(self.guards.take(&self.lease));
    }
}
