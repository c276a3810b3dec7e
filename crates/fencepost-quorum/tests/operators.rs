//! Answers to operators about a quorum whose nodes differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost_core::{
    Backend, Capabilities, Claim, Client, Clock, Entry, Error, ErrorKind, Eviction, How, Info, Listing,
    Memory, Name, Operator, Page, Reply, Result, Token,
};
use fencepost_quorum::Quorum;

/// A node's answer to an eviction.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Done,
    Mismatch,
    Fails,
}

struct Node {
    memory: Arc<Memory>,
    capabilities: Capabilities,
    eviction: Answer,
    /// How often it was told to leave the caller's runtime.
    left: AtomicU32,
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
        Reply::ready(match self.eviction {
            Answer::Done => Ok(()),
            Answer::Mismatch => Err(Error::new(ErrorKind::Mismatch, "no grant has that token")),
            Answer::Fails => Err(Error::new(ErrorKind::Unreachable, "the node is away")),
        })
    }
}

fn client(nodes: impl IntoIterator<Item = (Capabilities, Answer)>) -> Client {
    let node = |(capabilities, eviction)| {
        Arc::new(Node { memory: Memory::new(), capabilities, eviction, left: AtomicU32::new(0) })
            as Arc<dyn Backend>
    };
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
    let node = |_| {
        let (capabilities, eviction) = (Capabilities::full("node"), Answer::Done);
        Arc::new(Node { memory: Memory::new(), capabilities, eviction, left: AtomicU32::new(0) })
    };
    let nodes = [(); 3].map(node);
    let backends = nodes.iter().map(|node| Arc::<Node>::clone(node) as Arc<dyn Backend>).collect();
    Quorum::new("quorum", backends, Clock::manual()).unwrap().leave_caller_runtime();
    assert!(nodes.iter().all(|node| node.left.load(Ordering::SeqCst) == 1));
}
