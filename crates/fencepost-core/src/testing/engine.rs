//! An engine in memory that fails on demand.

use std::sync::Arc;
use std::time::Duration;

use super::entry::TestPlace;
use super::fault::{Fault, Faults};
use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::backend::records::RecordStore;
use crate::backend::{Backend, Operator, Reply};
use crate::client::Client;
use crate::entry::Entry;
use crate::entry::place::How;
use crate::error::{ErrorKind, Result};
use crate::guard::Guard;
use crate::memory::Memory;
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::runtime::Runtime;
use crate::runtime::spawner::Spawner;
use crate::runtime::thread::Thread;
use crate::time::Clock;
use crate::token::Token;

/// The engine of a client for tests. It makes a lock busy, slow, failing or lost on demand. Clones are the same engine.
///
/// A fault concerns the requests of the clients under test for one lock name, and lasts until [`heal`](TestEngine::heal).
/// A request that is under way keeps the fault that it began with. Inspections and listings have no faults.
#[derive(Clone)]
pub struct TestEngine {
    memory: Arc<Memory>,
    faults: Arc<Faults>,
    clock: Clock,
    host: Arc<dyn Spawner>,
    /// Drives the clock, where it is the machine's.
    _thread: Option<Arc<Thread>>,
}

impl TestEngine {
    /// Makes an engine in real time, whose tokens are made of the clock, so that it can have a fallback.
    /// [`backend`](TestEngine::backend) is for clients with options of their own, each with its own thread.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub fn in_real_time() -> Result<TestEngine> {
        let (thread, runtime) = Thread::start("test".to_owned(), Clock::boot())?;
        let (clock, host) = (runtime.clock().clone(), Arc::clone(runtime.spawner()));
        let engine = TestEngine::over(Memory::with_clock_tokens(0), clock, host);
        Ok(TestEngine { _thread: Some(Arc::new(thread)), ..engine })
    }

    pub(super) fn new(clock: Clock, host: Arc<dyn Spawner>) -> TestEngine {
        TestEngine::over(Memory::new(), clock, host)
    }

    /// Makes an engine over this memory, on the clock of [`testing::client`](crate::testing::client) and with its tasks: for tests with
    /// several engines, or with tokens that are made of a clock.
    pub fn over(memory: Arc<Memory>, clock: Clock, host: Arc<dyn Spawner>) -> TestEngine {
        TestEngine { memory, faults: Arc::default(), clock, host, _thread: None }
    }

    /// Makes one more client under test, as of another process of the program.
    pub fn client(&self) -> Client {
        self.open("test", self.backend())
    }

    /// Returns the engine with its faults, for a client with options of its own.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(Tested {
            memory: Arc::clone(&self.memory),
            faults: Arc::clone(&self.faults),
            clock: self.clock.clone(),
        })
    }

    /// Makes a client whose requests have no faults, as of another program that uses the same locks.
    pub fn other(&self) -> Client {
        self.open("another program", Arc::<Memory>::clone(&self.memory))
    }

    fn open(&self, label: &str, backend: Arc<dyn Backend>) -> Client {
        let runtime = Runtime::new("test".to_owned(), self.clock.clone(), Arc::clone(&self.host));
        let client = Client::builder().label(label).runtime(runtime).open(|_| Ok(backend));
        client.expect("these options suit the engine in memory")
    }

    /// Makes the lock busy: another program takes it exclusively and holds it until the guard is released or dropped. While the
    /// lock is held, this waits for its turn.
    ///
    /// For readers, permits or waiters, take the lock with [`other`](TestEngine::other).
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for a bad name.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind.
    pub async fn busy(&self, name: &str) -> Result<Guard> {
        self.other().mutex(name)?.lock().await
    }

    /// Makes each request for the lock take effect only after `by`: acquire, renew, release and detach.
    /// `Duration::MAX`: never.
    pub fn slow(&self, name: &str, by: Duration) {
        self.faults.set(name, Some(Fault::Slow(by)));
    }

    /// Makes each request for the lock fail with an error of this kind, without an effect: acquire, renew, release and
    /// detach. [`ErrorKind::Unreachable`] stands for a server that is down: the client repeats such requests, and a lock that
    /// is held is lost when its lease ends.
    pub fn fail(&self, name: &str, kind: ErrorKind) {
        self.faults.set(name, Some(Fault::Fails(kind)));
    }

    /// Ends the fault of the lock.
    pub fn heal(&self, name: &str) {
        self.faults.set(name, None);
    }

    /// Makes the engine go away for the clients under test: each request for any lock fails as [`fail`](TestEngine::fail) makes one fail.
    /// [`ErrorKind::Unreachable`] stands for a server that is down.
    pub fn fail_all(&self, kind: ErrorKind) {
        self.faults.set_all(Some(Fault::Fails(kind)));
    }

    /// Makes each request for any lock take effect only after `by`. `Duration::MAX`: never, as at a server that hangs.
    pub fn slow_all(&self, by: Duration) {
        self.faults.set_all(Some(Fault::Slow(by)));
    }

    /// Ends the fault of the whole engine. Faults of single locks stay.
    pub fn heal_all(&self) {
        self.faults.set_all(None);
    }

    /// Takes the lock from all who hold it, as an engine does that has lost its data. Their guards report
    /// [`Loss::Deleted`](crate::Loss::Deleted) at once, and the lock is free. Returns how many held it.
    ///
    /// An eviction by an operator is [`Client::evict`]. For a lease that ends, see [`TestClock::jump`](super::TestClock::jump).
    pub fn lose(&self, name: &str) -> usize {
        Name::new(name).map_or(0, |name| self.memory.forget(&name))
    }
}

impl std::fmt::Debug for TestEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestEngine").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// The engine as the clients under test see it.
struct Tested {
    memory: Arc<Memory>,
    faults: Arc<Faults>,
    clock: Clock,
}

impl Tested {
    /// The reply to a request, after the fault of the whole engine.
    fn unless_away<'a, T: Unpin + Send + 'a>(
        &'a self,
        ask: impl FnOnce() -> Reply<'a, Result<T>> + Send + 'a,
    ) -> Reply<'a, Result<T>> {
        match self.faults.of_all() {
            None => ask(),
            Some(fault) => Reply::coming(async move {
                fault.strike(&self.clock).await?;
                ask().await
            }),
        }
    }
}

impl Backend for Tested {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        let place = TestPlace::new(entry, Arc::clone(&claim), Arc::clone(&self.faults));
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        self.unless_away(|| Reply::ready(Ok(())))
    }
}

impl Operator for Tested {
    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        self.memory.operator().records(runtime)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.unless_away(move || self.memory.inspect(name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.unless_away(move || self.memory.list(prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.unless_away(move || self.memory.evict(name, token, how))
    }

    fn stored_permits<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        self.unless_away(move || self.memory.stored_permits(name))
    }

    fn set_permits<'a>(&'a self, name: &'a Name, limit: Option<u32>) -> Reply<'a, Result<()>> {
        self.unless_away(move || self.memory.set_permits(name, limit))
    }
}
