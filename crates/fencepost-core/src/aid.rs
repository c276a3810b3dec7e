//! What core lends to engines and layers: a clock, a place for tasks, a reaper.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::claim::{ClaimId, ClaimIds};
use crate::host::Host;
use crate::reaper::Reaper;
use crate::time::Clock;

/// What core lends to engines and layers. Clones are one `Arc`.
#[derive(Clone)]
pub struct Aid(Arc<Inner>);

struct Inner {
    client: u64,
    ids: ClaimIds,
    clock: Clock,
    host: Arc<dyn Host>,
    reaper: Reaper,
}

impl Aid {
    pub(crate) fn new(clock: Clock, host: Arc<dyn Host>) -> Aid {
        // Zero would be as good an id as any other; randomness failing is not.
        let client = getrandom::u64().expect("the system has no randomness");
        Aid::with(client, ClaimIds::Random, clock, host)
    }

    /// The aid of client number `client`: for simulations, where nothing may be random. Its claims' ids can be computed.
    pub fn for_client(client: u64, clock: Clock, host: Arc<dyn Host>) -> Aid {
        Aid::with(client, ClaimIds::counted(client), clock, host)
    }

    fn with(client: u64, ids: ClaimIds, clock: Clock, host: Arc<dyn Host>) -> Aid {
        let reaper = Reaper::new(clock.clone(), Arc::clone(&host));
        Aid(Arc::new(Inner { client, ids, clock, host, reaper }))
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
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.0.host
    }

    /// Who cleans up.
    pub fn reaper(&self) -> &Reaper {
        &self.0.reaper
    }

    /// Runs `task` on the host.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.host.spawn(Box::pin(task));
    }
}

impl fmt::Debug for Aid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aid").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}
