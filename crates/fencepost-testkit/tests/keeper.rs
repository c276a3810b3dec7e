//! Counts the rounds of renewal, and the cost of a round that fails. The counts are exact, because the clock
//! is manual.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Entry, Error, ErrorKind, Guard, How, Leave, Left, Memory,
    Moment, Operator, Place, Reply, Request, Result, Runtime, Session, State,
};
use fencepost_testkit::sim::{Executor, Ran};

/// Passes renewals on. There is one session per first letter of a name, as if each were a shard.
struct Shards {
    inner: Arc<Memory>,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    rounds: AtomicUsize,
    renewals: AtomicUsize,
    /// Rounds of shard `x` fail.
    failing: AtomicBool,
    /// Rounds of shard `x` are never answered.
    hanging: AtomicBool,
}

struct Shard {
    letter: u8,
    inner: Arc<dyn Session>,
    log: Arc<Log>,
}

struct ShardPlace {
    letter: u8,
    inner: Entry,
    log: Arc<Log>,
}

impl Backend for Shards {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let inner = Arc::clone(&self.inner).entry(Arc::clone(&claim), how);
        let letter = claim.want().name.as_str().as_bytes()[0];
        Entry::new(claim, how, ShardPlace { letter, inner, log: Arc::clone(&self.log) })
    }
    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }
}

impl Place for ShardPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.inner.ask()
    }
    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_news(cx)
    }
    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.inner.leave(how, may_have_left)
    }
    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let (letter, inner) = (self.letter, self.inner.session(holds)?);
        Some(Arc::new(Shard { letter, inner, log: Arc::clone(&self.log) }))
    }
    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
    }
}

impl Session for Shard {
    fn id(&self) -> u64 {
        u64::from(self.letter)
    }
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        self.log.rounds.fetch_add(1, Ordering::SeqCst);
        if self.letter == b'x' && self.log.hanging.load(Ordering::SeqCst) {
            return Reply::coming(std::future::pending());
        }
        if self.letter == b'x' && self.log.failing.load(Ordering::SeqCst) {
            return Reply::ready(Err(Error::new(ErrorKind::Unreachable, "the shard is away")));
        }
        self.log.renewals.fetch_add(due.len(), Ordering::SeqCst);
        self.inner.renew(due)
    }
}

struct World {
    executor: Executor,
    locks: Client,
    log: Arc<Log>,
    start: Moment,
}

impl World {
    fn new() -> World {
        let executor = Executor::new(1);
        let runtime = Runtime::for_client(1, executor.clock().clone(), executor.host(0));
        let log = Arc::new(Log::default());
        let shards = Arc::new(Shards { inner: Memory::new(), log: Arc::clone(&log) });
        let locks = Client::builder().runtime(runtime).open(|_| Ok(shards)).unwrap();
        let start = executor.clock().now();
        World { executor, locks, log, start }
    }

    fn hold(&mut self, names: impl IntoIterator<Item = String>) -> Vec<Guard> {
        let names: Vec<_> = names.into_iter().collect();
        let guards = Arc::new(Mutex::new(Vec::new()));
        let count = names.len();
        let (locks, taken) = (self.locks.clone(), Arc::clone(&guards));
        self.executor.host(0).spawn(Box::pin(async move {
            for name in names {
                let guard = locks.mutex(&name).unwrap().lock().await.unwrap();
                taken.lock().unwrap().push(guard);
            }
        }));
        let done = Arc::clone(&guards);
        let now = self.executor.clock().now();
        let ran = self.executor.run(now, move || done.lock().unwrap().len() == count);
        assert_eq!(ran, Ran::Done);
        std::mem::take(&mut guards.lock().unwrap())
    }

    /// Moves the clock to `secs` after the start.
    fn until(&mut self, secs: f64) {
        let limit = self.start + Duration::from_secs_f64(secs);
        assert!(matches!(self.executor.run(limit, || false), Ran::TimeOver | Ran::Stuck));
        self.executor.clock().advance_to(limit);
    }

    fn rounds(&self) -> usize {
        self.log.rounds.swap(0, Ordering::SeqCst)
    }

    fn renewals(&self) -> usize {
        self.log.renewals.swap(0, Ordering::SeqCst)
    }
}

#[test]
fn ten_thousand_locks_are_one_round_every_third_of_the_lease() {
    let mut world = World::new();
    let guards = world.hold((0..10_000).map(|n| format!("a{n}")));
    world.until(9.9);
    assert_eq!(world.rounds(), 0, "nothing is due before a third of the lease");
    world.until(95.0);
    assert_eq!((world.rounds(), world.renewals()), (9, 90_000));
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
}

#[test]
fn what_is_due_within_a_second_goes_along() {
    let mut world = World::new();
    let mut guards = Vec::new();
    for (n, at) in [0.0, 0.4, 0.9, 2.5].into_iter().enumerate() {
        world.until(at);
        guards.extend(world.hold([format!("a{n}")]));
    }
    world.until(12.0);
    assert_eq!((world.rounds(), world.renewals()), (1, 3));
    world.until(13.0);
    assert_eq!((world.rounds(), world.renewals()), (1, 1));
}

#[test]
fn a_released_lock_is_renewed_no_more() {
    let mut world = World::new();
    let mut guards = world.hold((0..10).map(|n| format!("a{n}")));
    guards.truncate(4);
    world.until(15.0);
    assert_eq!((world.rounds(), world.renewals()), (1, 4));
    drop(guards);
    world.until(100.0);
    assert_eq!(world.rounds(), 0);
}

#[test]
fn a_failed_renewal_is_suspect_not_lost_and_tried_again() {
    let mut world = World::new();
    let guards = world.hold(["x".to_owned()]);
    world.log.failing.store(true, Ordering::SeqCst);
    world.until(12.0);
    assert_eq!(guards[0].state(), State::Suspect);
    assert!(world.rounds() >= 2, "it was tried again soon");
    guards[0].ensure_held().unwrap();
    world.log.failing.store(false, Ordering::SeqCst);
    world.until(14.0);
    assert_eq!(guards[0].state(), State::Held);
    world.log.failing.store(true, Ordering::SeqCst);
    world.until(60.0);
    assert!(matches!(guards[0].state(), State::Lost(_)));
    world.rounds();
    world.until(200.0);
    assert_eq!(world.rounds(), 0, "what is lost is not renewed");
}

#[test]
fn a_shard_that_does_not_answer_delays_no_other() {
    let mut world = World::new();
    let guards = world.hold(["x".to_owned(), "a".to_owned()]);
    world.log.hanging.store(true, Ordering::SeqCst);
    world.until(59.0);
    assert!(matches!(guards[0].state(), State::Lost(_)));
    assert_eq!(guards[1].state(), State::Held);
    assert_eq!(world.renewals(), 5);
}
