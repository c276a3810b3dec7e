//! Five nodes in memory, each of which may be down, hang or not be ready yet.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::testing::NoTasks;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Clock, Conversion, Entry, Error, ErrorKind, Eviction,
    HolderInfo, How, Leave, Left, Memory, Mode, Name, Operator, Place, Renewal, Reply, Request, Result,
    Runtime, Session, Spawner, Task, Token, Want,
};
use fencepost_quorum::Quorum;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) const TTL: Duration = Duration::from_secs(9);

/// A node that may be down. Its leases end meanwhile.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) memory: Arc<Memory>,
    pub(crate) down: Arc<AtomicBool>,
    /// It answers no renewal.
    pub(crate) hangs: Arc<AtomicBool>,
    /// Stands for the connection, without which a node cannot be asked. It is there unless a test takes it away.
    ready: Arc<Semaphore>,
}

impl Node {
    pub(crate) fn check(&self) -> Result<()> {
        let down = self.down.load(Ordering::SeqCst);
        if down { Err(Error::new(ErrorKind::Unreachable, "it is down")) } else { Ok(()) }
    }
}

impl Backend for Node {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        Entry::new(claim, how, NodePlace { entry, node: (*self).clone() })
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }
}

pub(crate) struct NodePlace {
    entry: Entry,
    node: Node,
}

impl Place for NodePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        match self.node.check() {
            Ok(()) => Request::drops(async move {
                let _ready = self.node.ready.acquire().await.expect("it is never closed");
                self.entry.ask().await
            }),
            Err(error) => Request::ready(Err(error)),
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        match self.node.check() {
            Err(error) if how != Leave::Detach => Request::ready(Err(error)),
            _ => self.entry.leave(how, may_have_left),
        }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let session = self.entry.session(holds)?;
        Some(Arc::new(NodeSession { session, node: self.node.clone() }))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.entry.convert(to)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

pub(crate) struct NodeSession {
    session: Arc<dyn Session>,
    node: Node,
}

impl Session for NodeSession {
    fn id(&self) -> u64 {
        self.session.id()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        match self.node.check() {
            Ok(()) if self.node.hangs.load(Ordering::SeqCst) => Reply::coming(std::future::pending()),
            Ok(()) => self.session.renew(due),
            Err(error) => Reply::ready(Err(error)),
        }
    }
}

/// A host that runs its tasks when it is told to.
#[derive(Clone, Default)]
pub(crate) struct Patient(pub(crate) Arc<Mutex<Vec<Task>>>);

impl Spawner for Patient {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

impl Patient {
    pub(crate) async fn run(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap());
        poll_fn(|cx| {
            tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        self.0.lock().unwrap().append(&mut tasks);
    }
}

pub(crate) struct Five {
    pub(crate) nodes: Vec<Node>,
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) clock: Clock,
    runtime: Runtime,
    next: u128,
}

impl Five {
    pub(crate) fn new() -> Five {
        // What is left to the background is left to the leases.
        Five::on(NoTasks)
    }

    pub(crate) fn on(host: impl Spawner) -> Five {
        let clock = Clock::manual();
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(host));
        let node = |_| Node {
            memory: Memory::new(),
            down: Arc::default(),
            hangs: Arc::default(),
            ready: Arc::new(Semaphore::new(1)),
        };
        let nodes: Vec<Node> = (0..5).map(node).collect();
        let backends = nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Backend>).collect();
        let quorum = Arc::new(Quorum::new("quorum", backends, clock.clone()).unwrap());
        Five { nodes, quorum, clock, runtime, next: 1 }
    }

    /// A claim that does not wait.
    pub(crate) fn claim(&mut self) -> Arc<Claim> {
        self.claim_as(Mode::Exclusive)
    }

    pub(crate) fn claim_as(&mut self, mode: Mode) -> Arc<Claim> {
        self.next += 1;
        let want = Want { name: name(), mode };
        let id = ClaimId::from_u128(self.next);
        let mut claim = Claim::new(id, want, TTL, HolderInfo::labelled("test"), self.runtime.clone());
        claim.waits = false;
        Arc::new(claim)
    }

    pub(crate) async fn attempt(&mut self) -> (Arc<Claim>, Entry, Attempt) {
        let claim = self.claim();
        let mut entry = Arc::clone(&self.quorum).entry(Arc::clone(&claim), How::Enter);
        let attempt = entry.attempt().await.expect("a majority answers");
        (claim, entry, attempt)
    }

    pub(crate) fn down(&self, number: usize, down: bool) {
        self.nodes[number].down.store(down, Ordering::SeqCst);
    }

    /// The last two cannot be asked for as long as this lives.
    pub(crate) fn unmade(&self) -> Vec<OwnedSemaphorePermit> {
        self.nodes[3..].iter().map(|node| Arc::clone(&node.ready).try_acquire_owned().unwrap()).collect()
    }

    /// Lets more than a lease pass, with renewals in time.
    pub(crate) async fn pass(&self, held: &Renewal) {
        for _ in 0..5 {
            self.clock.advance_to(self.clock.now() + TTL / 4);
            // A node may fail the round.
            let _ = held.session.renew(std::slice::from_ref(&held.claim)).await;
        }
    }

    pub(crate) async fn evict(&self, nodes: Range<usize>, token: Token) {
        let how = Eviction::new(true);
        for node in &self.nodes[nodes] {
            node.memory.operator().evict(&name(), token, &how).await.unwrap();
        }
    }

    pub(crate) async fn held_at(&self, token: Token) -> usize {
        let mut count = 0;
        for node in &self.nodes {
            let info = node.memory.operator().inspect(&name()).await.unwrap();
            count += usize::from(info.holders().any(|holder| holder.token == Some(token)));
        }
        count
    }
}

pub(crate) fn name() -> Name {
    Name::new("lock").unwrap()
}

pub(crate) fn token(attempt: &Attempt) -> Token {
    let Attempt::Granted(grant) = attempt else { panic!("{attempt:?}") };
    *grant
}
