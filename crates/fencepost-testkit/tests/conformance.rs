//! The suite on the engine in memory, and on layers over it: a layer is an engine too.

use fencepost_core::{Backend, Memory, Result, Runtime};
use fencepost_testkit::chaos::{Chaos, Odds};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};
use std::sync::Arc;
use std::time::Duration;

/// Makes an engine for each case.
struct InMemory;

struct Place(Arc<Memory>);

impl Fixture for InMemory {
    fn page_row(&self) -> Option<&'static str> {
        Some("memory")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let place = Place(Memory::new());
        Box::pin(async { Box::new(place) as Box<dyn Namespace> })
    }
}

impl Namespace for Place {
    fn open(&self, _runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async { Ok(self.0.clone() as Arc<dyn Backend>) })
    }
}

mod memory {
    use super::*;

    fencepost_testkit::conformance!(
        InMemory,
        excused: [crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]
    );
}

/// The chaos layer without random faults. It can be cut as a network can.
mod memory_under_a_layer {
    use super::*;
    use fencepost_testkit::conformance;
    use fencepost_testkit::faults::{Fault, Faults};
    use std::sync::Mutex;

    struct Layered;

    struct Remote {
        engine: Arc<Memory>,
        network: Arc<Mutex<Vec<Arc<Chaos>>>>,
    }

    struct Network(Arc<Mutex<Vec<Arc<Chaos>>>>);

    impl Fixture for Layered {
        fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
            let place = Remote { engine: Memory::new(), network: Arc::default() };
            Box::pin(async { Box::new(place) as Box<dyn Namespace> })
        }
    }

    impl Namespace for Remote {
        fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
            let layer = Arc::new(Chaos::new(self.engine.clone(), runtime.clock().clone(), 1, Odds::NONE));
            self.network.lock().unwrap().push(layer.clone());
            Box::pin(async { Ok(layer as Arc<dyn Backend>) })
        }

        fn faults(&self) -> Option<Box<dyn Faults>> {
            Some(Box::new(Network(self.network.clone())))
        }
    }

    impl Faults for Network {
        fn cut(&mut self) -> std::result::Result<(), Fault> {
            self.0.lock().unwrap().iter().for_each(|layer| layer.cut(true));
            Ok(())
        }

        fn mend(&mut self) -> std::result::Result<(), Fault> {
            self.0.lock().unwrap().iter().for_each(|layer| layer.cut(false));
            Ok(())
        }
    }

    conformance!(Layered, excused: [crash_frees, a_process_that_ends_frees, stop_and_continue, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]);
}

/// The engine with which programs are tested: `Tested` of core. None of its faults is on.
mod memory_of_tests {
    use super::*;
    use fencepost_core::testing::{self, TestEngine};

    struct Tests;

    struct Engine(TestEngine);

    impl Fixture for Tests {
        fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
            Box::pin(async { Box::new(Engine(testing::client().2)) as Box<dyn Namespace> })
        }
    }

    impl Namespace for Engine {
        fn open(&self, _runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
            Box::pin(async { Ok(self.0.backend()) })
        }
    }

    fencepost_testkit::conformance!(
        Tests,
        excused: [crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]
    );
}

/// Records are answered late, as by a server.
mod memory_with_slow_records {
    use super::*;
    use fencepost_core::{Capabilities, Claim, Entry, Eviction, How, Info, Listing, Operator, Page, Token};
    use fencepost_core::{Name, Record, RecordKind, RecordStore, Reply, StoredRecord};

    struct Apart;

    struct Engine(Arc<Memory>);

    impl Backend for Engine {
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
            Arc::clone(&self.0).entry(claim, how)
        }

        fn operator(&self) -> &dyn Operator {
            self
        }
    }

    impl Operator for Engine {
        fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
            self.0.operator().inspect(name)
        }

        fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
            self.0.operator().list(prefix, page)
        }

        fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
            self.0.operator().evict(name, token, how)
        }

        fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
            self.0.operator().stored_permits(name)
        }

        fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
            self.0.operator().set_permits(name, limit)
        }

        fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
            self.0.operator().records(runtime).map(|records| Arc::new(Slow(records)) as Arc<dyn RecordStore>)
        }
    }

    /// A store whose writes are answered later than they take effect, so that their senders may be dropped between.
    struct Slow(Arc<dyn RecordStore>);

    impl RecordStore for Slow {
        fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
            self.0.read(kind, name)
        }

        fn write<'a>(
            &'a self,
            kind: RecordKind,
            name: &'a Name,
            record: Option<&'a Record>,
            version: u64,
        ) -> Reply<'a, Result<Option<u64>>> {
            let written = self.0.write(kind, name, record, version);
            Reply::coming(async move {
                let written = written.await;
                tokio::task::yield_now().await;
                written
            })
        }

        fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
            self.0.sweep()
        }
    }

    impl Fixture for Apart {
        fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
            Box::pin(async { Box::new(Engine(Memory::new())) as Box<dyn Namespace> })
        }
    }

    impl Namespace for Engine {
        fn open(&self, _: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
            Box::pin(async { Ok(Arc::new(Engine(Arc::clone(&self.0))) as Arc<dyn Backend>) })
        }
    }

    fencepost_testkit::conformance!(
        again: Apart,
        excused: [crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]
    );
}

/// Claims pass the limit first.
mod memory_under_a_limit {
    use super::*;
    use fencepost_testkit::limited;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Limited;

    /// The engine, and its name in the process.
    struct Engine(Arc<Memory>, String);

    impl Fixture for Limited {
        fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let engine = Engine(Memory::new(), COUNT.fetch_add(1, Ordering::Relaxed).to_string());
            Box::pin(async { Box::new(engine) as Box<dyn Namespace> })
        }
    }

    impl Namespace for Engine {
        fn open(&self, _runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
            let limit = limited::Limited::new(self.0.clone(), 64, &self.1);
            Box::pin(async { Ok(Arc::new(limit) as Arc<dyn Backend>) })
        }
    }

    fencepost_testkit::conformance!(
        Limited,
        excused: [crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder]
    );
}
