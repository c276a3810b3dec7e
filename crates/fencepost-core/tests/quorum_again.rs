//! A held lock gets the votes back that nodes have lost.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Aid, Attempt, Backend, Capabilities, Claim, ClaimId, Clock, Entry, Error, ErrorKind, Eviction, Holder,
    Host, Info, Left, Life, Listing, Memory, Mode, Moment, Name, Page, Quorum, Reply, Result, Session, Stake,
    State, Task, Token, Want,
};
use tokio::sync::Semaphore;

const TTL: Duration = Duration::from_secs(9);

/// A node that may be down. Its leases end meanwhile.
#[derive(Clone)]
struct Node {
    memory: Arc<Memory>,
    down: Arc<AtomicBool>,
    /// It answers no renewal.
    hangs: Arc<AtomicBool>,
    /// What has to be made before it can be asked, as a connection; there by itself unless taken away.
    ready: Arc<Semaphore>,
}

impl Node {
    fn check(&self) -> Result<()> {
        let down = self.down.load(Ordering::SeqCst);
        if down { Err(Error::new(ErrorKind::Unreachable, "it is down")) } else { Ok(()) }
    }
}

impl Backend for Node {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(NodeEntry { entry: self.memory.enter(claim), node: self.clone() })
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(NodeEntry { entry: self.memory.attach(claim), node: self.clone() })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.memory.inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.evict(name, token, how)
    }
}

struct NodeEntry {
    entry: Box<dyn Entry>,
    node: Node,
}

impl Entry for NodeEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        match self.node.check() {
            Ok(()) => Reply::coming(async move {
                let _ready = self.node.ready.acquire().await.expect("it is never closed");
                self.entry.attempt().await
            }),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()> {
        self.entry.poll_wait(cx, until)
    }

    fn stake(&self) -> Option<Stake> {
        let Stake { claim, session } = self.entry.stake()?;
        Some(Stake { claim, session: Arc::new(NodeSession { session, node: self.node.clone() }) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Left>> {
        match self.node.check() {
            Ok(()) => self.entry.withdraw(),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.entry.detach()
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.entry.raise(to)
    }
}

struct NodeSession {
    session: Arc<dyn Session>,
    node: Node,
}

impl Session for NodeSession {
    fn id(&self) -> u64 {
        self.session.id()
    }

    fn life(&self) -> &Arc<Life> {
        self.session.life()
    }

    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        match self.node.check() {
            Ok(()) if self.node.hangs.load(Ordering::SeqCst) => Reply::coming(std::future::pending()),
            Ok(()) => self.session.keep(due),
            Err(error) => Reply::ready(Err(error)),
        }
    }
}

/// A host that drops its tasks: what is left to the background is left to the leases.
struct Nobody;

impl Host for Nobody {
    fn spawn(&self, _: Task) {}
}

/// A host that runs its tasks when it is told to.
#[derive(Clone, Default)]
struct Patient(Arc<Mutex<Vec<Task>>>);

impl Host for Patient {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

impl Patient {
    async fn run(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap());
        poll_fn(|cx| {
            tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        self.0.lock().unwrap().append(&mut tasks);
    }
}

struct Five {
    nodes: Vec<Node>,
    quorum: Quorum,
    clock: Clock,
    aid: Aid,
    next: u128,
}

impl Five {
    fn new() -> Five {
        Five::on(Nobody)
    }

    fn on(host: impl Host) -> Five {
        let clock = Clock::manual();
        let aid = Aid::for_client(1, clock.clone(), Arc::new(host));
        let node = |_| Node {
            memory: Memory::new(),
            down: Arc::default(),
            hangs: Arc::default(),
            ready: Arc::new(Semaphore::new(1)),
        };
        let nodes: Vec<Node> = (0..5).map(node).collect();
        let backends = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Backend>).collect();
        let quorum = Quorum::new("quorum", backends, clock.clone()).unwrap();
        Five { nodes, quorum, clock, aid, next: 1 }
    }

    /// A claim that does not wait.
    fn claim(&mut self) -> Arc<Claim> {
        self.claim_as(Mode::Exclusive)
    }

    fn claim_as(&mut self, mode: Mode) -> Arc<Claim> {
        self.next += 1;
        let want = Want { name: name(), mode };
        let id = ClaimId::from_u128(self.next);
        let mut claim = Claim::new(id, want, TTL, Holder::labelled("test"), self.aid.clone());
        claim.join = false;
        Arc::new(claim)
    }

    async fn attempt(&mut self) -> (Arc<Claim>, Box<dyn Entry>, Attempt) {
        let claim = self.claim();
        let mut entry = self.quorum.enter(Arc::clone(&claim));
        let attempt = entry.attempt().await.expect("a majority answers");
        (claim, entry, attempt)
    }

    fn down(&self, number: usize, down: bool) {
        self.nodes[number].down.store(down, Ordering::SeqCst);
    }

    /// Lets more than a lease pass, with renewals in time.
    async fn pass(&self, held: &Stake) {
        for _ in 0..5 {
            self.clock.advance_to(self.clock.now() + TTL / 4);
            // A node may fail the round.
            let _ = held.session.keep(std::slice::from_ref(&held.claim)).await;
        }
    }

    async fn held_at(&self, token: Token) -> usize {
        let mut count = 0;
        for node in &self.nodes {
            let info = node.memory.inspect(&name()).await.unwrap();
            count += usize::from(info.holders().any(|holder| holder.token == Some(token)));
        }
        count
    }
}

fn name() -> Name {
    Name::new("lock").unwrap()
}

fn token(attempt: &Attempt) -> Token {
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    grant.token
}

/// Each takes the votes of those nodes that are up then: of two permits three might be had by majorities that differ.
#[tokio::test]
async fn permits_are_no_more_than_there_are_whichever_nodes_grant_them() {
    let mut five = Five::new();
    let (mut held, mut granted) = (Vec::new(), 0);
    for down in [&[3, 4][..], &[1, 2], &[4], &[0], &[], &[]] {
        down.iter().for_each(|number| five.down(*number, true));
        let claim = five.claim_as(Mode::Permits { n: 1, of: 2 });
        let mut entry = five.quorum.enter(claim);
        let two_down = down.len() == 2;
        match entry.attempt().await {
            Ok(Attempt::Granted(_)) => granted += 1,
            Ok(_) => {}
            Err(error) => assert!(two_down && error.to_string().contains("fewer than 4 of 5"), "{error}"),
        }
        held.push(entry);
        down.iter().for_each(|number| five.down(*number, false));
        // What failed is undone.
        five.clock.advance_to(five.clock.now() + Duration::from_secs(1));
    }
    assert_eq!(granted, 2);
}

#[tokio::test]
async fn a_held_lock_outlives_that_all_nodes_lose_it_one_after_the_other() {
    let mut five = Five::new();
    let (claim, mut entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    for number in 0..5 {
        five.down(number, true);
        five.pass(&held).await;
        let lost = five.nodes[number].memory.inspect(&name()).await.unwrap();
        assert_eq!(lost.holders().count(), 0, "its lease has ended there");
        assert!(matches!(five.attempt().await.2, Attempt::Blocked { .. }), "four others hold it");
        five.down(number, false);
        five.pass(&held).await;
        assert_eq!(five.held_at(token).await, 5, "the node votes again, for the same token");
    }
    // Two more may go, as at first.
    five.down(0, true);
    five.down(1, true);
    five.pass(&held).await;
    assert_eq!(claim.life.state(five.clock.now()), State::Held);
    assert!(matches!(five.attempt().await.2, Attempt::Blocked { .. }));
    five.down(0, false);
    five.down(1, false);
    five.quorum.evict(&name(), token, &Eviction { now: false, reason: None }).await.expect("all know it");
    assert_eq!(entry.release().await.unwrap(), Left::Released);
    assert_eq!(five.held_at(token).await, 0);
    let (_, _, next) = five.attempt().await;
    assert!(self::token(&next) > token);
}

/// A node that another claim has got stays with it, and is asked again.
#[tokio::test]
async fn a_node_that_voted_for_somebody_else_is_asked_until_it_is_free() {
    let mut five = Five::new();
    let (_, entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    five.down(4, true);
    five.pass(&held).await;
    five.down(4, false);
    // A contender without a majority, which has stopped.
    let other = five.claim();
    let mut contender = five.nodes[4].memory.enter(Arc::clone(&other));
    assert!(matches!(contender.attempt().await, Ok(Attempt::Granted(_))));
    for _ in 0..3 {
        five.clock.advance_to(five.clock.now() + TTL / 4);
        held.session.keep(std::slice::from_ref(&held.claim)).await.expect("four of five");
    }
    assert_eq!(five.held_at(token).await, 4);
    let waits = five.nodes[4].memory.inspect(&name()).await.unwrap();
    assert_eq!(waits.claims.len(), 1, "who holds already waits for nothing");
    five.pass(&held).await;
    assert_eq!(five.held_at(token).await, 5);
}

/// A lock that has lost its majority is lost, whoever would vote for it afterwards.
#[tokio::test]
async fn what_is_lost_is_not_voted_for_again() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    (0..3).for_each(|number| five.down(number, true));
    five.pass(&held).await;
    (0..3).for_each(|number| five.down(number, false));
    five.pass(&held).await;
    assert!(matches!(claim.life.state(five.clock.now()), State::Lost(_)));
    assert!(five.held_at(token).await <= 2, "the three have forgotten it");
}

/// Until its renewal is over, which waits for the slowest node, the claim must not be as weak as before.
#[tokio::test]
async fn a_vote_that_came_back_counts_while_another_node_hangs() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    (0..2).for_each(|number| five.down(number, true));
    five.pass(&held).await;
    (0..2).for_each(|number| five.down(number, false));
    five.nodes[2].hangs.store(true, Ordering::SeqCst);
    five.clock.advance_to(five.clock.now() + TTL / 4);
    let mut round = held.session.keep(std::slice::from_ref(&held.claim));
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut round).poll(cx))).await.is_pending());
    assert_eq!(five.held_at(token).await, 5);
    let how = Eviction { now: true, reason: None };
    for number in 3..5 {
        five.nodes[number].memory.evict(&name(), token, &how).await.unwrap();
    }
    assert_eq!(claim.life.state(five.clock.now()), State::Held, "three of five hold it");
}

/// Whoever is met for the first time answers after the others: until then three nodes alone hold it.
#[tokio::test]
async fn a_node_that_is_met_late_counts_before_the_first_renewal() {
    let tasks = Patient::default();
    let mut five = Five::on(tasks.clone());
    let unmade: Vec<_> =
        five.nodes[3..].iter().map(|node| Arc::clone(&node.ready).try_acquire_owned().unwrap()).collect();
    let (claim, entry, granted) = five.attempt().await;
    let (_held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    tasks.run().await;
    assert_eq!(five.held_at(token).await, 3);
    drop(unmade);
    tasks.run().await;
    assert_eq!(five.held_at(token).await, 5);
    assert!(tasks.0.lock().unwrap().is_empty(), "nothing is left to do");
    let how = Eviction { now: true, reason: None };
    for node in &five.nodes[..2] {
        node.memory.evict(&name(), token, &how).await.unwrap();
    }
    assert_eq!(claim.life.state(five.clock.now()), State::Held, "three of five hold it");
}

/// A renewal takes in what is still under way, without waiting for it.
#[tokio::test]
async fn a_node_that_was_met_late_counts_while_the_others_are_renewed() {
    let mut five = Five::new();
    let unmade: Vec<_> =
        five.nodes[3..].iter().map(|node| Arc::clone(&node.ready).try_acquire_owned().unwrap()).collect();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    five.nodes[0].hangs.store(true, Ordering::SeqCst);
    let mut round = held.session.keep(std::slice::from_ref(&held.claim));
    let mut poll = async || poll_fn(|cx| Poll::Ready(Pin::new(&mut round).poll(cx))).await;
    assert!(poll().await.is_pending());
    drop(unmade);
    assert!(poll().await.is_pending());
    let how = Eviction { now: true, reason: None };
    for node in &five.nodes[..2] {
        node.memory.evict(&name(), token, &how).await.unwrap();
    }
    assert_eq!(claim.life.state(five.clock.now()), State::Held, "three of five hold it");
}

/// An operator's word to a single node stands.
#[tokio::test]
async fn a_node_that_evicted_it_does_not_get_it_back() {
    let mut five = Five::new();
    let (claim, entry, granted) = five.attempt().await;
    let (held, token) = (entry.stake().expect("it is renewed"), token(&granted));
    let how = Eviction { now: true, reason: None };
    five.nodes[2].memory.evict(&name(), token, &how).await.unwrap();
    five.pass(&held).await;
    assert_eq!(five.held_at(token).await, 4);
    assert_eq!(claim.life.state(five.clock.now()), State::Held);
}
