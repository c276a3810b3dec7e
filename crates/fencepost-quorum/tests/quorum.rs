//! A quorum of engines in memory: who waits is woken by a release, once.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Client, Clock, Entry, Eviction, HolderInfo, How, Leave,
    Left, Memory, Mode, Name, Operator, Place, Removed, Request, Runtime, Session, Spawner, Task, Vote, Want,
};
use fencepost_quorum::Quorum;

fn nodes(count: usize) -> Vec<Arc<dyn Backend>> {
    (0..count).map(|_| Memory::new() as Arc<dyn Backend>).collect()
}

fn client(nodes: &[Arc<dyn Backend>]) -> (Client, Arc<dyn Backend>, Runtime) {
    let mut given = None;
    let open = |runtime: &Runtime| {
        let quorum = Arc::new(Quorum::new("quorum", nodes.to_vec(), runtime.clock().clone())?);
        given = Some((Arc::clone(&quorum) as Arc<dyn Backend>, runtime.clone()));
        Ok(quorum as Arc<dyn Backend>)
    };
    let locks = Client::builder().open(open).unwrap();
    let (quorum, runtime) = given.expect("it was opened");
    (locks, quorum, runtime)
}

fn claim(id: u128, runtime: &Runtime) -> Arc<Claim> {
    let want = Want { name: Name::new("lock").unwrap(), mode: Mode::Exclusive };
    let holder = HolderInfo::labelled("test");
    // Some of these are not renewed.
    let ttl = Duration::from_secs(60);
    Arc::new(Claim::new(ClaimId::from_u128(id), want, ttl, holder, runtime.clone()))
}

#[tokio::test]
async fn a_release_wakes_the_oldest_at_once() {
    let nodes = nodes(5);
    let clients = [client(&nodes).0, client(&nodes).0];
    let mutex = |turn: usize| clients[turn % 2].mutex("lock").unwrap();
    let mut guard = mutex(0).lock().await.unwrap();
    let mut slow = 0;
    for turn in 1..=40 {
        let next = mutex(turn);
        let waiting = tokio::spawn(async move { next.lock().wait(Duration::from_secs(20)).await.unwrap() });
        while clients[0].inspect("lock").await.unwrap().waiters().count() == 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        guard.release().await.unwrap();
        guard = waiting.await.unwrap();
        slow += u32::from(start.elapsed() > Duration::from_millis(900));
    }
    // One who is not woken asks again after a second. A busy machine may hold some up.
    assert!(slow <= 10, "{slow} of 40 were not woken");
    guard.release().await.unwrap();
}

/// A quorum of one less would let two hold: each of them with half of the nodes.
#[tokio::test]
async fn half_of_the_nodes_are_no_majority() {
    for count in 2..=5 {
        let nodes = nodes(count);
        let (locks, quorum, runtime) = client(&nodes);
        // Others have all nodes but half.
        let mut others = Vec::new();
        for (number, node) in nodes.iter().enumerate().skip(count / 2) {
            let mut other = Arc::clone(node).entry(claim(100 + number as u128, &runtime), How::Enter);
            assert!(matches!(other.attempt().await, Ok(Attempt::Granted(_))));
            others.push(other);
        }
        let mut entry = Arc::clone(&quorum).entry(claim(1, &runtime), How::Enter);
        for _ in 0..10 {
            let answer = entry.attempt().await;
            let half = count / 2;
            assert!(matches!(answer, Ok(Attempt::Blocked { .. })), "{half} of {count} nodes: {answer:?}");
        }
        others[0].release().await.unwrap();
        let majority = async { while !matches!(entry.attempt().await, Ok(Attempt::Granted(_))) {} };
        tokio::time::timeout(Duration::from_secs(20), majority).await.expect("more than half vote for it");
        entry.release().await.unwrap();
        locks.close().await;
    }
}

/// A token that one node alone has given might be another claim's next.
#[tokio::test]
async fn a_token_is_one_that_a_majority_has_given() {
    let nodes = nodes(3);
    let (locks, quorum, runtime) = client(&nodes);
    // One node has given a token far above what the quorum proposes.
    let mut ahead = Arc::into_inner(claim(100, &runtime)).expect("nobody else has it");
    ahead.vote = Some(Box::new(Vote::new(0, 1 << 60)));
    let mut other = Arc::clone(&nodes[0]).entry(Arc::new(ahead), How::Enter);
    assert!(matches!(other.attempt().await, Ok(Attempt::Granted(_))));
    other.release().await.unwrap();
    let mut entry = Arc::clone(&quorum).entry(claim(1, &runtime), How::Enter);
    let granted = async {
        loop {
            if let Ok(Attempt::Granted(grant)) = entry.attempt().await {
                break grant;
            }
        }
    };
    let token = tokio::time::timeout(Duration::from_secs(20), granted).await.expect("all three vote for it");
    let mut given = 0;
    for node in &nodes {
        let info = node.operator().inspect(&claim(1, &runtime).want().name).await.unwrap();
        given += info.holders().filter(|holder| holder.token == Some(token)).count();
    }
    assert!(given >= 2, "{given} of 3 nodes have given {token}");
    entry.release().await.unwrap();
    locks.close().await;
}

/// A hint of a node that the next round leaves out stays unheeded there: taken for a new one each time, the wait never waits.
#[tokio::test]
async fn a_hint_wakes_once() {
    let (locks, quorum, runtime) = client(&nodes(3));
    let enter = |id| Arc::clone(&quorum).entry(claim(id, &runtime), How::Enter);
    let polled = |entry: &mut Entry| entry.poll_wait(&mut Context::from_waker(Waker::noop()));
    let (mut first, mut second, mut third) = (enter(1), enter(2), enter(3));
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    assert!(matches!(second.attempt().await, Ok(Attempt::Blocked { .. })));
    assert_eq!(polled(&mut second), Poll::Pending);
    first.release().await.unwrap();
    assert!(matches!(third.attempt().await, Ok(Attempt::Granted(_))));
    assert_eq!(polled(&mut second), Poll::Ready(()), "it was free for a moment");
    assert!(matches!(second.attempt().await, Ok(Attempt::Blocked { .. })));
    assert_eq!(polled(&mut second), Poll::Pending, "it asked, and nothing has happened since");
    third.release().await.unwrap();
    assert_eq!(polled(&mut second), Poll::Ready(()));
    assert!(matches!(second.attempt().await, Ok(Attempt::Granted(_))));
    second.release().await.unwrap();
    locks.close().await;
}

/// A holder that hears of its eviction from the first node leaves the others before they are asked.
#[tokio::test]
async fn an_eviction_that_the_holder_heeds_early_is_one() {
    let nodes = nodes(5);
    let (locks, quorum, _) = client(&nodes);
    let name = Name::new("lock").unwrap();
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    let how = Eviction::new(true);
    for node in &nodes[..3] {
        node.operator().evict(&name, guard.token(), &how).await.unwrap();
    }
    quorum.operator().evict(&name, guard.token(), &how).await.unwrap();
    assert!(
        quorum.operator().evict(&name, guard.token(), &how).await.unwrap_err().is_mismatch(),
        "nobody has it any more"
    );
    drop(guard);
    locks.close().await;
}

/// A node that takes a millisecond for a release; a mute one never answers it.
#[derive(Clone)]
struct Slow {
    node: Arc<dyn Backend>,
    clock: Clock,
    mute: bool,
    asked: Arc<AtomicU32>,
}

struct SlowPlace {
    entry: Entry,
    slow: Slow,
}

impl Backend for Slow {
    fn capabilities(&self) -> Capabilities {
        self.node.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.node).entry(Arc::clone(&claim), how);
        Entry::new(claim, how, SlowPlace { entry, slow: (*self).clone() })
    }

    fn operator(&self) -> &dyn Operator {
        self.node.operator()
    }
}

impl Place for SlowPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.entry.ask()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if how == Leave::Detach {
            return self.entry.leave(how, may_have_left);
        }
        Request::drops(async move {
            let left = self.entry.leave(how, may_have_left).await;
            self.slow.asked.fetch_add(1, Ordering::SeqCst);
            if self.slow.mute {
                return poll_fn(|_| Poll::Pending).await;
            }
            self.slow.clock.advance_to(self.slow.clock.now() + Duration::from_millis(1));
            left
        })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

/// A host that keeps its tasks and never runs them.
#[derive(Default)]
struct Shelf(Mutex<Vec<Task>>);

impl Spawner for Shelf {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

/// Nothing runs in the background here, and time passes only by the answers: nothing else can be waited for.
#[tokio::test]
async fn a_release_waits_for_a_majority_once_it_is_sent_everywhere() {
    let clock = Clock::manual();
    let runtime = Runtime::for_client(1, clock.clone(), Arc::new(Shelf::default()));
    let asked = Arc::new(AtomicU32::new(0));
    let slow = |(number, node)| {
        let (clock, asked) = (clock.clone(), Arc::clone(&asked));
        Arc::new(Slow { node, clock, mute: number < 2, asked }) as Arc<dyn Backend>
    };
    let nodes = nodes(5).into_iter().enumerate().map(slow).collect();
    let quorum = Arc::new(Quorum::new("quorum", nodes, clock.clone()).unwrap());
    for cycle in 1..=100 {
        let mut entry = Arc::clone(&quorum).entry(claim(cycle.into(), &runtime), How::Enter);
        assert!(matches!(entry.attempt().await, Ok(Attempt::Granted(_))));
        let left = tokio::time::timeout(Duration::from_secs(20), entry.release()).await;
        assert_eq!(left.expect("a majority has answered").unwrap(), Removed::Released);
        assert_eq!(asked.load(Ordering::SeqCst), 5 * cycle, "each was asked");
    }
    assert_eq!(runtime.cleaner().backlog(), 1, "what is not answered is still somebody's");
}
