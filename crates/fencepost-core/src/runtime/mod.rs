//! The runtime of a client: its clock, the place where its tasks run, and the cleaner.

pub(crate) mod cleaner;
pub(crate) mod deadlines;
pub(crate) mod finish;
pub(crate) mod renewer;
pub(crate) mod single_flight;
pub(crate) mod spawner;
pub(crate) mod supervisor;
pub(crate) mod thread;
// Its test runs on Linux as well.
#[cfg(any(test, not(target_os = "linux"), fencepost_portable))]
#[cfg_attr(all(target_os = "linux", not(fencepost_portable)), allow(dead_code))]
mod portable_timer;
#[cfg(any(not(target_os = "linux"), fencepost_portable))]
use portable_timer as timer;
#[cfg(all(target_os = "linux", not(fencepost_portable)))]
mod timer;

use std::fmt;
use std::sync::Arc;

use crate::backend::claim_id::{ClaimId, ClaimIds};
use crate::runtime::cleaner::Cleaner;
use crate::runtime::spawner::Spawner;
use crate::time::Clock;
use crate::validity::Loss;

/// The client's clock and where its tasks run. Clones share it.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    client: u64,
    label: String,
    ids: ClaimIds,
    clock: Clock,
    spawner: Arc<dyn Spawner>,
    cleaner: Cleaner,
}

impl Runtime {
    pub(crate) fn new(label: String, clock: Clock, spawner: Arc<dyn Spawner>) -> Runtime {
        // Zero would be as good an id as any other; randomness failing is not.
        let client = getrandom::u64().expect("the system has no randomness");
        Runtime::with(client, label, ClaimIds::Random, clock, spawner)
    }

    /// The runtime of client number `client`: for simulations, where nothing may be random. Its claims' ids can be computed.
    pub fn for_client(client: u64, clock: Clock, spawner: Arc<dyn Spawner>) -> Runtime {
        Runtime::with(client, format!("client {client}"), ClaimIds::counted(client), clock, spawner)
    }

    fn with(client: u64, label: String, ids: ClaimIds, clock: Clock, spawner: Arc<dyn Spawner>) -> Runtime {
        let cleaner = Cleaner::new(clock.clone(), Arc::clone(&spawner));
        Runtime(Arc::new(Inner { client, label, ids, clock, spawner, cleaner }))
    }

    /// An id that no other claim has.
    pub(crate) fn fresh_id(&self) -> ClaimId {
        self.0.ids.fresh()
    }

    /// A number that tells this client from others. No secret.
    pub fn client(&self) -> u64 {
        self.0.client
    }

    /// Returns the client's label, for names that an engine's administrator sees.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// The client's clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns why the grants of a session end that is over: the client was closed, or the session ended by itself.
    pub fn session_loss(&self) -> Loss {
        if self.0.clock.is_closed() { Loss::Closed } else { Loss::SessionEnded }
    }

    /// Returns the place where tasks run.
    pub fn spawner(&self) -> &Arc<dyn Spawner> {
        &self.0.spawner
    }

    /// Returns the cleaner.
    pub fn cleaner(&self) -> &Cleaner {
        &self.0.cleaner
    }

    /// Runs `task` where the tasks of the client run.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawner.spawn(Box::pin(task));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}
