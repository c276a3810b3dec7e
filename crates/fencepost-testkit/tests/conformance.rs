//! The suite on the engine in memory, and on layers over it: a layer is an engine too.

use fencepost_core::{Aid, Backend, Memory, Result};
use fencepost_testkit::chaos::{Chaos, Odds};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};
use std::sync::Arc;

/// Makes the engine and puts layers over it for each client.
struct Over {
    engine: fn() -> Arc<Memory>,
    layer: fn(Arc<dyn Backend>, &Aid) -> Arc<dyn Backend>,
}

struct Place {
    engine: Arc<Memory>,
    layer: fn(Arc<dyn Backend>, &Aid) -> Arc<dyn Backend>,
}

impl Fixture for Over {
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let place = Place { engine: (self.engine)(), layer: self.layer };
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

impl Namespace for Place {
    fn open(&self, aid: Aid) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async move { Ok((self.layer)(self.engine.clone(), &aid)) })
    }
}

mod memory {
    use super::*;

    fencepost_testkit::conformance!(
        Over { engine: Memory::new, layer: |engine, _| engine },
        excused: [crash_frees, stop_and_continue]
    );
}

/// One identity a process: all tasks of a client pass core's local gate.
mod memory_of_processes {
    use super::*;

    fencepost_testkit::conformance!(
        Over { engine: Memory::with_process_identity, layer: |engine, _| engine },
        excused: [
            permits, mixed_modes, detach_and_attach, a_detached_lease_ends, first_come_first_served,
            a_waiting_writer_is_not_overtaken, a_small_claim_waits_behind_a_large_one, crash_frees, stop_and_continue
        ]
    );
}

/// The chaos layer without chaos.
mod memory_under_a_layer {
    use super::*;

    fencepost_testkit::conformance!(
        Over {
            engine: Memory::new,
            layer: |engine, aid| Arc::new(Chaos::new(engine, aid.clock().clone(), 1, Odds::NONE)),
        },
        excused: [crash_frees, stop_and_continue]
    );
}
