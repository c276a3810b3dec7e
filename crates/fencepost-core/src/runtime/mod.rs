//! What core lends to engines and layers: a clock, a place for tasks, a cleaner.

pub(crate) mod cleaner;
pub(crate) mod cleanup;
pub(crate) mod renewer;
pub(crate) mod spawner;
pub(crate) mod thread;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::backend::claim_id::{ClaimId, ClaimIds};
use crate::runtime::cleaner::Cleaner;
use crate::runtime::spawner::Spawner;
use crate::time::Clock;

/// What core lends to engines and layers. Clones are one `Arc`.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    client: u64,
    ids: ClaimIds,
    clock: Clock,
    host: Arc<dyn Spawner>,
    cleaner: Cleaner,
}

impl Runtime {
    pub(crate) fn new(clock: Clock, host: Arc<dyn Spawner>) -> Runtime {
        // Zero would be as good an id as any other; randomness failing is not.
        let client = getrandom::u64().expect("the system has no randomness");
        Runtime::with(client, ClaimIds::Random, clock, host)
    }

    /// The runtime of client number `client`: for simulations, where nothing may be random. Its claims' ids can be computed.
    pub fn for_client(client: u64, clock: Clock, host: Arc<dyn Spawner>) -> Runtime {
        Runtime::with(client, ClaimIds::counted(client), clock, host)
    }

    fn with(client: u64, ids: ClaimIds, clock: Clock, host: Arc<dyn Spawner>) -> Runtime {
        let cleaner = Cleaner::new(clock.clone(), Arc::clone(&host));
        Runtime(Arc::new(Inner { client, ids, clock, host, cleaner }))
    }

    /// An id that no other claim has.
    pub(crate) fn fresh_id(&self) -> ClaimId {
        self.0.ids.fresh()
    }

    /// A number that tells this client from others. No secret.
    pub fn client(&self) -> u64 {
        self.0.client
    }

    /// The client's clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Where tasks run.
    pub fn host(&self) -> &Arc<dyn Spawner> {
        &self.0.host
    }

    /// Who cleans up.
    pub fn cleaner(&self) -> &Cleaner {
        &self.0.cleaner
    }

    /// Runs `task` on the host.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.host.spawn(Box::pin(task));
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}
