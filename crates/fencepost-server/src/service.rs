//! The parts that all requests share.

use std::sync::Arc;

use fencepost_core::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Answer, Problem};
use crate::running::Running;
use crate::snapshots::Snapshots;

/// How many callers wait at the same time at most. A waiting caller has some 20 KiB here and a place in the engine's queue.
const WAITING: usize = 10_000;

/// The parts that all requests share.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) locks: Client,
    /// A permit for each caller that waits.
    waiting: Arc<Semaphore>,
    /// The requests with a key that are under way.
    pub(crate) keyed: Running,
    pub(crate) snapshots: Snapshots,
}

impl Service {
    pub(crate) fn new(locks: Client) -> Service {
        let snapshots = Snapshots::new(locks.clone());
        Service { locks, waiting: Arc::new(Semaphore::new(WAITING)), keyed: Running::default(), snapshots }
    }

    /// Counts a caller that waits, until the permit is dropped.
    pub(crate) fn wait(&self) -> Answer<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.waiting).try_acquire_owned();
        permit.map_err(|_| Problem::unavailable("too-many-waiting", "10,000 callers wait already"))
    }
}
