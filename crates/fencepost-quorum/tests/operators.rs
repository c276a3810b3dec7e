//! Answers to operators about a quorum whose nodes differ.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{
    Backend, Capabilities, Claim, Client, Clock, Entry, Error, ErrorKind, Eviction, How, Info, Listing,
    Memory, Name, Operator, Page, Reply, Result, Token,
};
use fencepost_quorum::Quorum;

/// A node's answer to an eviction.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Done,
    /// Done as soon as [`Evictions::late`] says so.
    Late,
    Mismatch,
    Fails,
}

#[derive(Default)]
struct Evictions {
    count: AtomicU32,
    late: AtomicBool,
}

struct Node {
    memory: Arc<Memory>,
    capabilities: Capabilities,
    eviction: Answer,
    /// How often it was told to leave the caller's runtime.
    left: AtomicU32,
    /// Of all nodes.
    evictions: Arc<Evictions>,
}

impl Backend for Node {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Arc::clone(&self.memory).entry(claim, how)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn leave_caller_runtime(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

impl Operator for Node {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.memory.operator().inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, _: &'a Name, _: Token, _: &'a Eviction) -> Reply<'a, Result<()>> {
        let done = || {
            self.evictions.count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        Reply::ready(match self.eviction {
            Answer::Done => done(),
            Answer::Late => {
                let late = move || self.evictions.late.load(Ordering::SeqCst);
                return Reply::coming(poll_fn(
                    move |_| if late() { Poll::Ready(done()) } else { Poll::Pending },
                ));
            }
            Answer::Mismatch => Err(Error::new(ErrorKind::Mismatch, "no grant has that token")),
            Answer::Fails => Err(Error::new(ErrorKind::Unreachable, "the node is away")),
        })
    }
}

impl Node {
    fn new(capabilities: Capabilities, eviction: Answer, evictions: &Arc<Evictions>) -> Arc<Node> {
        let (memory, left, evictions) = (Memory::new(), AtomicU32::new(0), Arc::clone(evictions));
        Arc::new(Node { memory, capabilities, eviction, left, evictions })
    }
}

fn client(nodes: impl IntoIterator<Item = (Capabilities, Answer)>) -> Client {
    let node =
        |(capabilities, eviction)| Node::new(capabilities, eviction, &Arc::default()) as Arc<dyn Backend>;
    let nodes = nodes.into_iter().map(node).collect();
    Client::builder()
        .open(|runtime| Ok(Arc::new(Quorum::new("quorum", nodes, runtime.clock().clone())?)))
        .unwrap()
}

#[tokio::test]
async fn an_eviction_counts_where_a_majority_has_done_it_or_knows_no_such_grant() {
    use Answer::{Done, Fails, Mismatch};
    let evict = async |answers: &[Answer]| {
        let locks = client(answers.iter().map(|answer| (Capabilities::full("node"), *answer)));
        let result = locks.evict("lock", Token::new(1), &Eviction::default()).await;
        locks.close().await;
        result
    };
    for done in
        [&[Done, Done, Done], &[Done, Done, Fails], &[Done, Mismatch, Fails], &[Done, Mismatch, Mismatch]]
    {
        evict(done).await.unwrap_or_else(|error| panic!("{done:?}: {error}"));
    }
    for none in [&[Mismatch, Mismatch, Mismatch][..], &[Mismatch, Mismatch, Fails]] {
        assert!(evict(none).await.unwrap_err().is_mismatch(), "{none:?}");
    }
    let unknown: [&[Answer]; 4] = [
        &[Done, Fails, Fails],
        &[Mismatch, Fails, Fails],
        &[Mismatch, Mismatch, Fails, Fails, Fails],
        &[Fails, Fails, Fails],
    ];
    for unknown in unknown {
        assert!(evict(unknown).await.unwrap_err().is_unreachable(), "{unknown:?}");
    }
}

/// A grant that a slow node keeps stays there until its lease ends, which may take a day if it is detached.
#[test]
fn an_eviction_waits_for_a_node_that_is_slow() {
    let (evictions, clock) = (Arc::<Evictions>::default(), Clock::manual());
    let node = |answer| Node::new(Capabilities::full("node"), answer, &evictions) as Arc<dyn Backend>;
    let nodes = [Answer::Done, Answer::Late, Answer::Done].map(node);
    let quorum = Quorum::new("quorum", nodes.into(), clock.clone()).unwrap();
    let (name, how) = (Name::new("lock").unwrap(), Eviction::new(true));
    let mut eviction = pin!(async { quorum.operator().evict(&name, Token::new(1), &how).await });
    let mut poll = || eviction.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    clock.advance_to(clock.now() + Duration::from_secs(1));
    assert!(poll().is_pending(), "the slow node was given up");
    evictions.late.store(true, Ordering::SeqCst);
    assert!(matches!(poll(), Poll::Ready(Ok(()))));
    assert_eq!(evictions.count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_quorum_can_do_what_each_of_its_nodes_can() {
    let of = |last: Capabilities| {
        let full = (Capabilities::full("node"), Answer::Done);
        let nodes = [full.clone(), full, (last, Answer::Done)];
        client(nodes).capabilities().clone()
    };
    let mut all = Capabilities::full("quorum");
    all.stored_permits = false;
    all.no_history = of(Capabilities::full("node")).no_history;
    assert!(all.no_history.is_some(), "it says why");
    (all.fair, all.barging, all.replicas, all.history, all.upgrade) = (false, false, false, false, false);
    assert_eq!(
        of(Capabilities::full("node")),
        all,
        "it is not fair, its nodes are its replicas, and it has neither runs nor upgrades"
    );
    let lacks: [fn(&mut Capabilities); 7] = [
        |it| it.shared = false,
        |it| it.permits = false,
        |it| it.detach = false,
        |it| it.inspect = false,
        |it| it.evict = false,
        |it| it.tokens = fencepost_core::Tokens::ClockBounded,
        |it| it.min_ttl *= 2,
    ];
    for (number, lack) in lacks.into_iter().enumerate() {
        let (mut node, mut quorum) = (Capabilities::full("node"), all.clone());
        lack(&mut node);
        lack(&mut quorum);
        assert_eq!(of(node), quorum, "{number}");
    }
}

#[test]
fn each_node_leaves_the_runtime_of_the_caller() {
    let node = |_| Node::new(Capabilities::full("node"), Answer::Done, &Arc::default());
    let nodes = [(); 3].map(node);
    let backends = nodes.iter().map(|node| Arc::<Node>::clone(node) as Arc<dyn Backend>).collect();
    Quorum::new("quorum", backends, Clock::manual()).unwrap().leave_caller_runtime();
    assert!(nodes.iter().all(|node| node.left.load(Ordering::SeqCst) == 1));
}
