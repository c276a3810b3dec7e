//! A quorum of nodes that answer when a gate is opened.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Client, Clock, Conversion, Entry, Eviction, HolderInfo,
    How, Info, Leave, Left, Listing, Memory, Mode, Name, Operator, Page, Place, Reply, Request, Result,
    Runtime, Session, Spawner, Task, Token, Vote, Want, margin,
};
use fencepost_quorum::Quorum;
use tokio::sync::Semaphore;

const TTL: Duration = Duration::from_secs(9);

/// An open gate lets everybody through, at once or when it is opened.
fn gate(open: bool) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 }))
}

#[derive(Clone)]
struct Gated {
    node: Arc<dyn Backend>,
    /// Before it is asked for the lock.
    attempts: Arc<Semaphore>,
    /// Behind a grant that was cut loose, before that is answered.
    detaches: Arc<Semaphore>,
}

impl Gated {
    fn new(attempts: bool, detaches: bool) -> Gated {
        Gated { node: Memory::new(), attempts: gate(attempts), detaches: gate(detaches) }
    }
}

struct GatedPlace {
    entry: Entry,
    gated: Gated,
}

impl Backend for Gated {
    fn capabilities(&self) -> Capabilities {
        self.node.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.node).entry(Arc::clone(&claim), how);
        Entry::new(claim, how, GatedPlace { entry, gated: (*self).clone() })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Gated {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(async {
            let _through = self.attempts.acquire().await;
            self.node.operator().inspect(name).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.node.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.node.operator().evict(name, token, how)
    }
}

impl Place for GatedPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(async {
            let _through = self.gated.attempts.acquire().await;
            self.entry.ask().await
        })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if how != Leave::Detach {
            return self.entry.leave(Leave::Withdraw, may_have_left);
        }
        Request::drops(async move {
            let done = self.entry.leave(how, may_have_left).await;
            let _through = self.gated.detaches.acquire().await;
            done
        })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.entry.convert(to)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

fn quorum(nodes: &[Gated], clock: &Clock) -> Arc<dyn Backend> {
    let nodes = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Backend>).collect();
    Arc::new(Quorum::new("quorum", nodes, clock.clone()).unwrap())
}

fn client(nodes: &[Gated]) -> Client {
    Client::builder().open(|runtime| Ok(quorum(nodes, runtime.clock()))).unwrap()
}

/// A host that keeps its tasks and never runs them.
#[derive(Default)]
struct Shelf(Mutex<Vec<Task>>);

impl Spawner for Shelf {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

/// Time passes only where a test says so.
fn runtime() -> Runtime {
    Runtime::for_client(1, Clock::manual(), Arc::new(Shelf::default()))
}

fn claim(id: u128, runtime: &Runtime) -> Arc<Claim> {
    let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
    Arc::new(Claim::new(ClaimId::from_u128(id), want, TTL, HolderInfo::labelled("test"), runtime.clone()))
}

/// Has the node grant its part of a claim of this order, with this token, and keep it.
async fn give(node: &Gated, number: u32, (order, token): (u64, u64), runtime: &Runtime) {
    let mut part = Arc::into_inner(claim(order.into(), runtime)).expect("nobody else has it");
    part.id = part.id.derive(number);
    part.want.mode = Mode::Shared;
    (part.whole, part.vote) = (Some(order), Some(Box::new(Vote::new(order, token))));
    let mut entry = Arc::clone(&node.node).entry(Arc::new(part), How::Enter);
    assert!(matches!(entry.attempt().await, Ok(Attempt::Granted(given)) if given == Token::new(token)));
    entry.detach().await.unwrap();
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The answer, which waits for no clock that only a test moves.
async fn answer<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("no majority answers")
}

/// The nodes have cut it loose, and nobody has been told whose secret would end it.
#[tokio::test]
async fn what_was_being_cut_loose_is_released_when_that_is_given_up() {
    let nodes = [(); 3].map(|()| Gated::new(true, false));
    let (locks, other) = (client(&nodes), client(&nodes));
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    {
        let mut detaching = pin!(guard.detach());
        assert!(poll(detaching.as_mut()).is_pending());
    }
    nodes.iter().for_each(|node| node.detaches.add_permits(Semaphore::MAX_PERMITS));
    // Long before the end of a lease of a minute.
    let next = other.mutex("lock").unwrap().lock().wait(Duration::from_secs(20)).await;
    next.expect("it was released").release().await.unwrap();
    locks.close().await;
}

/// Where a lock is contended one node is asked before the others: not one that did not answer the last time.
#[tokio::test]
async fn a_node_that_hangs_is_not_waited_for_alone() {
    let runtime = runtime();
    let clock = runtime.clock();
    let nodes = [Gated::new(false, true), Gated::new(true, true), Gated::new(true, true)];
    let quorum = quorum(&nodes, clock);
    let enter = |id| Arc::clone(&quorum).entry(claim(id, &runtime), How::Enter);
    let mut entries = [enter(1), enter(2), enter(3), enter(4)];
    let [holder, first, second, third] = &mut entries;
    assert!(matches!(answer(holder.attempt()).await, Ok(Attempt::Granted(_))));
    assert!(matches!(answer(first.attempt()).await, Ok(Attempt::Blocked { .. })), "contended from now on");
    {
        let mut asking = pin!(second.attempt());
        assert!(poll(asking.as_mut()).is_pending(), "nothing is known against the node that hangs");
        clock.advance_to(clock.now() + Quorum::PATIENCE);
        let Poll::Ready(Err(error)) = poll(asking.as_mut()) else { panic!("its time is over") };
        assert!(error.is_unreachable() && error.is_transient(), "{error}");
    }
    assert!(matches!(poll(pin!(second.attempt())), Poll::Ready(Ok(Attempt::Blocked { .. }))));
    // It would be probed now.
    clock.advance_to(clock.now() + Quorum::PATIENCE);
    assert!(matches!(poll(pin!(third.attempt())), Poll::Ready(Ok(Attempt::Blocked { .. }))));
}

/// Without a majority there is no answer.
#[tokio::test]
async fn an_operator_waits_for_a_majority_and_a_little_for_the_others() {
    let clock = Clock::manual();
    let nodes = [true, false, false].map(|attempts| Gated::new(attempts, true));
    let quorum = quorum(&nodes, &clock);
    let name = Name::new("lock").unwrap();
    let mut looking = quorum.operator().inspect(&name);
    let grace = Duration::from_millis(20);
    for majority in [false, true] {
        if majority {
            nodes[1].attempts.add_permits(1);
        }
        assert!(poll(pin!(&mut looking)).is_pending());
        clock.advance_to(clock.now() + grace.saturating_sub(Duration::from_nanos(1)));
        assert!(poll(pin!(&mut looking)).is_pending());
        clock.advance_to(clock.now() + Duration::from_nanos(1));
        assert_eq!(poll(pin!(&mut looking)).is_ready(), majority);
    }
}

/// One node has voted for it, and another one has not. The third one decides.
#[tokio::test]
async fn an_operator_waits_for_the_nodes_that_decide_whether_a_claim_holds() {
    for has_voted in [None, Some(false), Some(true)] {
        let runtime = runtime();
        let clock = runtime.clock();
        let nodes = [true, true, false].map(|attempts| Gated::new(attempts, true));
        let quorum = quorum(&nodes, clock);
        give(&nodes[0], 0, (7, 10), &runtime).await;
        if has_voted == Some(true) {
            give(&nodes[2], 2, (7, 10), &runtime).await;
        }
        let name = Name::new("lock").unwrap();
        let mut looking = quorum.operator().inspect(&name);
        assert!(poll(pin!(&mut looking)).is_pending());
        clock.advance_to(clock.now() + Quorum::PATIENCE.saturating_sub(Duration::from_nanos(1)));
        assert!(poll(pin!(&mut looking)).is_pending());
        if has_voted.is_some() {
            nodes[2].attempts.add_permits(1);
        } else {
            clock.advance_to(clock.now() + Duration::from_nanos(1));
        }
        let Poll::Ready(Ok(info)) = poll(pin!(&mut looking)) else {
            panic!("{has_voted:?}: its time is over")
        };
        let holders: Vec<_> = info.holders().map(|claim| claim.unconfirmed).collect();
        let expected: &[bool] = match has_voted {
            None => &[true],
            Some(false) => &[],
            Some(true) => &[false],
        };
        assert_eq!(holders, expected, "{has_voted:?}");
        assert_eq!(info.confirmed_holders().count(), usize::from(has_voted == Some(true)));
    }
}

/// Operators see which parts belong together.
#[tokio::test]
async fn claims_that_are_made_at_one_moment_are_several() {
    let runtime = runtime();
    let nodes = [(); 3].map(|()| Gated::new(true, true));
    let quorum = quorum(&nodes, runtime.clock());
    let shared = |id| {
        let mut claim = Arc::into_inner(claim(id, &runtime)).expect("nobody else has it");
        claim.want.mode = Mode::Shared;
        Arc::clone(&quorum).entry(Arc::new(claim), How::Enter)
    };
    let mut entries = [shared(1), shared(2)];
    for entry in &mut entries {
        assert!(matches!(answer(entry.attempt()).await, Ok(Attempt::Granted(_))));
    }
    let info = answer(async { quorum.operator().inspect(&Name::new("lock").unwrap()).await }).await.unwrap();
    assert_eq!(info.confirmed_holders().count(), 2, "{info:?}");
}

/// Each of them is an entry of its own, of one claim.
#[tokio::test]
async fn a_lease_that_is_attached_and_extended_is_renewed_still() {
    let runtime = runtime();
    let clock = runtime.clock();
    let nodes = [(); 3].map(|()| Gated::new(true, true));
    let quorum = quorum(&nodes, clock);
    let mut held = Arc::clone(&quorum).entry(claim(7, &runtime), How::Enter);
    assert!(matches!(answer(held.attempt()).await, Ok(Attempt::Granted(_))));
    answer(held.detach()).await.unwrap();
    let mut attached = Arc::clone(&quorum).entry(claim(7, &runtime), How::Attach);
    assert!(matches!(answer(attached.attempt()).await, Ok(Attempt::Granted(_))));
    let renewal = attached.renewal().expect("it is renewed");
    let mut extended = Arc::clone(&quorum).entry(claim(7, &runtime), How::Attach);
    assert!(matches!(answer(extended.attempt()).await, Ok(Attempt::Granted(_))));
    drop(extended);
    clock.advance_to(clock.now() + TTL / 2);
    let before = renewal.claim.validity.until();
    answer(renewal.session.renew(std::slice::from_ref(&renewal.claim))).await.unwrap();
    assert!(renewal.claim.validity.until() > before, "the round passed it by");
}

/// One node never had it, one is silent: whether a majority has it still is not known.
#[tokio::test]
async fn a_lease_that_a_silent_node_may_have_is_not_called_lost() {
    let runtime = runtime();
    let clock = runtime.clock();
    let nodes = [Gated::new(true, true), Gated::new(true, true), Gated::new(false, true)];
    let quorum = quorum(&nodes, clock);
    let mut held = Arc::clone(&quorum).entry(claim(7, &runtime), How::Enter);
    assert!(matches!(answer(held.attempt()).await, Ok(Attempt::Granted(_))));
    answer(held.detach()).await.unwrap();
    nodes[1].attempts.forget_permits(Semaphore::MAX_PERMITS);
    // The first request, which nobody polls any more, takes one of them.
    nodes[2].attempts.add_permits(2);
    let mut attached = Arc::clone(&quorum).entry(claim(7, &runtime), How::Attach);
    {
        let mut asking = pin!(attached.attempt());
        assert!(poll(asking.as_mut()).is_pending());
        clock.advance_to(clock.now() + Quorum::PATIENCE);
        let Poll::Ready(Err(error)) = poll(asking.as_mut()) else { panic!("nobody knows") };
        assert!(error.is_unreachable(), "{error}");
    }
    nodes[1].attempts.add_permits(1);
    assert!(matches!(answer(attached.attempt()).await, Ok(Attempt::Granted(_))));
}

/// Two nodes have granted it late, under a token of their own, and answer first.
#[tokio::test]
async fn a_lease_that_is_attached_has_the_token_of_its_majority() {
    let runtime = runtime();
    let nodes = [true, false, false, true, true].map(|attempts| Gated::new(attempts, true));
    let given = |number: usize| if number < 3 { 7 } else { 9 };
    for (number, node) in nodes.iter().enumerate() {
        let mut seat = Arc::into_inner(claim(7, &runtime)).expect("nobody else has it");
        seat.id = seat.id.derive(number as u32);
        seat.vote = Some(Box::new(Vote::new(0, given(number))));
        let mut entry = Arc::clone(&node.node).entry(Arc::new(seat), How::Enter);
        let Ok(Attempt::Granted(grant)) = entry.attempt().await else { panic!("it is free") };
        assert_eq!(grant, Token::new(given(number)));
        entry.detach().await.unwrap();
    }
    let quorum = quorum(&nodes, runtime.clock());
    let mut attached = Arc::clone(&quorum).entry(claim(7, &runtime), How::Attach);
    let mut asking = pin!(attached.attempt());
    assert!(poll(asking.as_mut()).is_pending(), "three nodes do not agree");
    nodes[1..3].iter().for_each(|node| node.attempts.add_permits(1));
    let Ok(Attempt::Granted(grant)) = answer(asking).await else { panic!("all five have it") };
    assert_eq!(grant, Token::new(7));
}

/// The third node has given a token of its own, as one that granted the claim late. Its vote would stay until the lease expires.
#[tokio::test]
async fn an_eviction_finds_the_claim_at_a_node_that_gave_it_another_token() {
    let runtime = runtime();
    let nodes = [(); 3].map(|()| Gated::new(true, true));
    let quorum = quorum(&nodes, runtime.clock());
    // Two claims of one process, which look alike: the first one is evicted.
    for (order, tokens) in [(1, [10, 10, 11]), (2, [20, 20, 21])] {
        for (number, token) in (0..).zip(tokens) {
            give(&nodes[number as usize], number, (order, token), &runtime).await;
        }
    }
    let name = Name::new("lock").unwrap();
    for is_now in [false, true] {
        answer(async { quorum.operator().evict(&name, Token::new(10), &Eviction::new(is_now)).await })
            .await
            .unwrap();
        for (number, node) in nodes.iter().enumerate() {
            let info = node.node.operator().inspect(&name).await.unwrap();
            let left = info.holders().filter(|holder| is_now || !holder.evicted);
            let tokens: Vec<_> = left.map(|holder| holder.token.unwrap().get()).collect();
            assert_eq!(tokens, [if number == 2 { 21 } else { 20 }], "now: {is_now}, node {number}");
        }
    }
}

/// The time that the answers take is part of the lease.
#[tokio::test]
async fn a_grant_counts_from_before_the_nodes_are_asked() {
    let runtime = runtime();
    let clock = runtime.clock();
    let nodes = [(); 3].map(|()| Gated::new(false, true));
    let quorum = quorum(&nodes, clock);
    let (claim, sent) = (claim(7, &runtime), clock.now());
    let mut entry = Arc::clone(&quorum).entry(Arc::clone(&claim), How::Enter);
    let mut asking = pin!(entry.attempt());
    assert!(poll(asking.as_mut()).is_pending());
    clock.advance_to(sent + Quorum::PATIENCE / 2);
    nodes.iter().for_each(|node| node.attempts.add_permits(1));
    assert!(matches!(answer(asking).await, Ok(Attempt::Granted(_))));
    assert_eq!(claim.validity.until(), sent + (TTL - margin(TTL)));
}
