//! Object stores: the engine on a store in memory beside the bare driver, and on a server with kills and bad networks.
//!
//! No Debian package has a server with the conditions that the engine needs, so the measurements on a server take its URL from the
//! environment.

use crate::client::{connect, cycle, runtime};
use crate::crowd::{Crowd, PROCESSES, ours, wait_until};
use crate::figure::{Figure, Measured, Rounds, Row, median, p50};
use crate::killed;
use crate::torture::{self, LEASE, Target};
use fencepost::object::testing::MemoryStore;
use fencepost_core::{Backend, BackendUrl, Client, Registry, Reply, Result, Runtime};
use fencepost_testkit::history::Recorder;
use fencepost_testkit::sim::Rng;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, UpdateVersion};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

/// The environment variable with the URL of a store.
const URL: &str = "FENCEPOST_OBJECT_URL";
/// Rounds of the cycle, and cycles in each.
const ROUNDS: usize = 9;
const CYCLES: usize = 500;
/// How often a line drains.
const DRAINS: usize = 5;
/// The claims of a process that ask for a name. The others wait in the process, where nobody sees them.
const VISIBLE: usize = 4;

/// Returns the URL of a store, with a prefix of its own for this run.
fn url() -> String {
    let url = std::env::var(URL).unwrap_or_else(|_| {
        panic!("{URL} names no object store, so this is not measured; docs/testing.md shows such a URL")
    });
    let (place, options) = url.split_once('?').expect("options of the URL, with the endpoint");
    format!("{}/bench-{}?{options}", place.trim_end_matches('/'), std::process::id())
}

/// One task on a store in memory: what the engine itself costs.
pub(crate) fn one_task() -> Figure {
    let (runtime, bare) = (runtime(), InMemory::new());
    let client = runtime.block_on(async {
        let registry = Registry::new().with("stored", open);
        Client::builder().connect(&registry, "stored:").await.expect("a store in memory")
    });
    let lock = client.mutex("uncontended").expect("a good name");
    let key = Path::from("locks/uncontended");
    runtime.block_on(bare.put(&key, "free".into())).expect("a store in memory");
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => by_hand(&bare, &key).await,
            _ => cycle(&lock).await,
        }))
    });
    runtime.block_on(client.close());
    let (figure, floor) = ("lock and release on a store in memory, p50", "one read and two writes by hand");
    Row { engine: "object", figure, unit: "µs", floor, bar: "" }.of(&rounds, 1)
}

fn open(_: BackendUrl, runtime: Runtime) -> Reply<'static, Result<std::sync::Arc<dyn Backend>>> {
    static STORE: OnceLock<MemoryStore> = OnceLock::new();
    Reply::coming(STORE.get_or_init(MemoryStore::default).open(runtime))
}

/// The requests of a cycle: the object is read, and written twice on the condition that nobody else has written it.
async fn by_hand(store: &InMemory, key: &Path) {
    let read = store.get(key).await.expect("it is there");
    let mut version = UpdateVersion { e_tag: read.meta.e_tag.clone(), version: read.meta.version.clone() };
    read.bytes().await.expect("it can be read");
    for text in ["held", "free"] {
        let written = store.put_opts(key, text.into(), PutMode::Update(version).into()).await;
        version = written.expect("nobody else has written it").into();
    }
}

/// Handoffs a second with so many waiters in four processes.
pub(crate) fn handoff(waiters: usize) -> Measured {
    let (url, runtime) = (url(), runtime());
    let look = runtime.block_on(connect(&url));
    let visible = waiters.min(VISIBLE * PROCESSES);
    let mut crowd = Crowd::gather(waiters, || ours(&url));
    let mut drain = || {
        let drained = crowd.drain(|_| {
            wait_until("all waited", || {
                let info = runtime.block_on(look.inspect(crate::client::NAME)).expect("a store that answers");
                info.waiters().count() >= visible
            });
        });
        drained.handoffs() / drained.seconds()
    };
    let rates = (0..DRAINS).map(|_| drain()).collect();
    runtime.block_on(look.close());
    Measured {
        figure: median(rates),
        note: format!("{waiters} waiters in {PROCESSES} processes, median of {DRAINS} drains"),
    }
}

/// The longest time, in seconds, past its lease after which a killed holder's lock is granted to the next.
pub(crate) fn killed_holders() -> Measured {
    let lease = killed::LEASE;
    killed::past(&url(), lease, &format!("with a lease of {} s", lease.as_secs()))
}

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn torture(wanted: usize, seed: u64) -> Measured {
    torture::cycles(Store::new(), wanted, seed)
}

/// A store that others have started, so that nothing befalls it but the network.
struct Store {
    url: String,
    address: SocketAddr,
}

impl Store {
    fn new() -> Store {
        let url = url();
        let endpoint = url.split_once("endpoint=http://").map(|(_, rest)| rest);
        let address = endpoint.and_then(|rest| rest.split(['/', '&']).next()?.parse().ok());
        Store { address: address.expect("the URL has endpoint=http://ADDRESS:PORT"), url }
    }
}

impl Target for Store {
    const SEGMENT: usize = 2_000;
    const KEPT: Duration = LEASE;
    /// A waiter counts the lease from the moment at which it first sees the holder's last write.
    const LINGER: Duration = Duration::from_secs(10);
    const FAULTS: u64 = 1;

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.address]
    }

    fn url(&self, hosts: &str) -> String {
        self.url.replacen(&self.address.to_string(), hosts, 1)
    }

    fn strike(&mut self, _: u64, _: Duration, _: &mut Rng, _: &Recorder) -> Option<&'static str> {
        None
    }

    /// The waiters of killed processes are shown for half an hour, and no grant depends on them.
    fn left(&self) -> Vec<String> {
        torture::holders(&self.url)
    }
}
