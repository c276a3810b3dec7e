//! Nodes that answer as a test says.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Clock, Conversion, Entry, Error, ErrorKind, Found,
    HolderInfo, How, Leave, Left, Loss, Mode, Moment, Name, Operator, Place, Removed, Reply, Request, Result,
    Runtime, Session, Spawner, Task, Token, Want,
};
use fencepost_quorum::Quorum;

pub(crate) const TTL: Duration = Duration::from_secs(9);

/// One answer. A request without one is pending.
#[derive(Debug)]
pub(crate) enum Say {
    Grant(u64),
    /// Refused, with the order of the claim in the way; 0: unknown.
    Refuse(u64),
    /// Refused because of its own vote, in which it was undone.
    RefuseByItself,
    /// Refused until then.
    RefuseUntil(Moment),
    /// The claim is not known, or its grant is over.
    Gone,
    /// The raise, the detachment or the renewal is done.
    Done,
    Left(Removed),
    Fail(Error),
}

pub(crate) fn outbid() -> Say {
    Say::Fail(Error::new(ErrorKind::Mismatch, "another claim has that token"))
}

pub(crate) fn lost() -> Say {
    Say::Fail(Error::lost("lock", Loss::Deleted))
}

/// The request was not sent.
pub(crate) fn unsent() -> Say {
    Say::Fail(Error::new(ErrorKind::Unreachable, "the node is down"))
}

/// The reply was lost.
pub(crate) fn unknown() -> Say {
    Say::Fail(Error::new(ErrorKind::Unreachable, "the reply was lost").unknown())
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Asked {
    /// For a vote, with this proposal.
    Vote(u64),
    /// For the grant that was detached.
    Attach,
    Raise(u64),
    Withdraw,
    Release,
    /// For the release of a grant that was detached.
    ReleaseLease,
    Detach,
    /// For a renewal of so many claims.
    Renew(usize),
}

#[derive(Default)]
pub(crate) struct Node {
    says: Mutex<VecDeque<Say>>,
    asked: Mutex<Vec<Asked>>,
    hints: Mutex<bool>,
    waker: Mutex<Option<Waker>>,
}

impl Node {
    /// Answers the next request, or the one that waits.
    pub(crate) fn say(&self, say: Say) {
        self.says.lock().unwrap().push_back(say);
        let waker = self.waker.lock().unwrap().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Says of each refused claim that it is worth asking again, or that it is not.
    pub(crate) fn hints(&self, hints: bool) {
        *self.hints.lock().unwrap() = hints;
    }

    async fn answer(&self, asked: Asked) -> Say {
        self.asked.lock().unwrap().push(asked);
        poll_fn(|cx| {
            *self.waker.lock().unwrap() = Some(cx.waker().clone());
            self.says.lock().unwrap().pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

struct Scripted(Arc<Node>);

struct ScriptedPlace {
    node: Arc<Node>,
    claim: Arc<Claim>,
    attached: bool,
}

impl Backend for Scripted {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full("scripted")
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let (node, attached) = (Arc::clone(&self.0), how == How::Attach);
        Entry::new(Arc::clone(&claim), how, ScriptedPlace { node, claim, attached })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Scripted {}

impl ScriptedPlace {
    async fn remove(&self, asked: Asked) -> Result<Left> {
        match self.node.answer(asked).await {
            Say::Left(left) => Ok(Left::by_parts(left)),
            Say::Fail(error) => Err(error),
            other => panic!("{other:?} answers no {asked:?}"),
        }
    }

    async fn done(&self, asked: Asked) -> Result<()> {
        match self.node.answer(asked).await {
            Say::Done => Ok(()),
            Say::Fail(error) => Err(error),
            other => panic!("{other:?} answers no {asked:?}"),
        }
    }
}

impl Place for ScriptedPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(async {
            let vote = self.claim.vote.as_ref().expect("each claim at a node is a vote");
            let sent = self.claim.runtime.clock().now();
            let proposal = vote.proposal.load(std::sync::atomic::Ordering::SeqCst);
            let asked = if self.attached { Asked::Attach } else { Asked::Vote(proposal) };
            let mut next_attempt = None;
            match self.node.answer(asked).await {
                Say::Grant(token) => {
                    self.claim.confirm(sent, self.claim.ttl());
                    return Ok(Attempt::Granted(Token::new(token)));
                }
                Say::Gone => return Ok(Attempt::Gone),
                Say::Fail(error) => return Err(error),
                Say::Refuse(rival) => vote.rival.store(rival, std::sync::atomic::Ordering::SeqCst),
                Say::RefuseByItself => vote.rival.store(vote.order, std::sync::atomic::Ordering::SeqCst),
                Say::RefuseUntil(moment) => next_attempt = Some(moment),
                other => panic!("{other:?} answers no {asked:?}"),
            }
            Ok(Attempt::Blocked { next_attempt })
        })
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if *self.node.hints.lock().unwrap() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        match how {
            Leave::Withdraw => Request::drops(self.remove(Asked::Withdraw)),
            Leave::Release if self.attached => Request::drops(self.remove(Asked::ReleaseLease)),
            Leave::Release => Request::drops(self.remove(Asked::Release)),
            Leave::Detach => Request::drops(async {
                self.done(Asked::Detach).await?;
                Ok(Found::There.into())
            }),
        }
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        Some(Arc::new(NodeSession { node: Arc::clone(&self.node) }))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        let Conversion::Raise { to } = to else { panic!("a vote is raised alone") };
        Request::drops(async move {
            self.done(Asked::Raise(to.get())).await?;
            Ok(Attempt::Granted(to))
        })
    }
}

struct NodeSession {
    node: Arc<Node>,
}

impl Session for NodeSession {
    fn id(&self) -> u64 {
        1
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async {
            let sent = due[0].runtime.clock().now();
            match self.node.answer(Asked::Renew(due.len())).await {
                Say::Done => {
                    due.iter().for_each(|claim| _ = claim.confirm(sent, claim.ttl()));
                    Ok(())
                }
                Say::Gone => {
                    due.iter().for_each(|claim| claim.validity.end(Loss::Expired));
                    Ok(())
                }
                Say::Fail(error) => Err(error),
                other => panic!("{other:?} answers no renewal"),
            }
        })
    }
}

/// A host that runs its tasks when it is told to.
#[derive(Clone, Default)]
struct Patient(Arc<Mutex<Vec<Task>>>);

impl Spawner for Patient {
    fn spawn(&self, task: Task) {
        self.0.lock().unwrap().push(task);
    }
}

/// A quorum of scripted nodes. Time passes and tasks run only where a test says so.
pub(crate) struct Votes {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
    tasks: Patient,
}

impl Votes {
    pub(crate) fn of(count: usize) -> Votes {
        let (clock, tasks) = (Clock::manual(), Patient::default());
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(tasks.clone()));
        let nodes: Vec<Arc<Node>> = (0..count).map(|_| Arc::default()).collect();
        let backends =
            nodes.iter().map(|node| Arc::new(Scripted(Arc::clone(node))) as Arc<dyn Backend>).collect();
        let quorum = Arc::new(Quorum::new("quorum", backends, clock.clone()).unwrap());
        Votes { nodes, quorum, clock, runtime, tasks }
    }

    /// A claim that waits.
    pub(crate) fn claim(&self, id: u128, mode: Mode) -> Claim {
        let want = Want { name: Name::new("lock").unwrap(), mode };
        let holder = HolderInfo::labelled("test");
        Claim::new(ClaimId::from_u128(id), want, TTL, holder, self.runtime.clone())
    }

    pub(crate) fn enter(&self, id: u128) -> Entry {
        self.entry(self.claim(id, Mode::Exclusive), How::Enter)
    }

    /// Dropped, it asks nothing: each request is one that the test makes.
    pub(crate) fn entry(&self, claim: Claim, how: How) -> Entry {
        Arc::clone(&self.quorum).entry(Arc::new(claim), how).on_drop(None)
    }

    /// Each of the nodes, from the first, gives one of these answers.
    pub(crate) fn say(&self, says: impl IntoIterator<Item = Say>) {
        self.nodes.iter().zip(says).for_each(|(node, say)| node.say(say));
    }

    /// The requests to each of the nodes since the last call.
    pub(crate) fn asked(&self) -> Vec<Vec<Asked>> {
        self.nodes.iter().map(|node| node.asked()).collect()
    }

    pub(crate) fn wall(&self) -> u64 {
        self.clock.wall_micros()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance_to(self.clock.now() + time);
    }

    /// How many tasks the host has.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.0.lock().unwrap().len()
    }

    /// Runs what is left to the background, once.
    pub(crate) fn run(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.0.lock().unwrap());
        tasks.retain_mut(|task| poll(task).is_pending());
        self.tasks.0.lock().unwrap().append(&mut tasks);
    }
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The answer, which is there.
pub(crate) fn now<F: Future + Unpin>(mut future: F) -> F::Output {
    let Poll::Ready(answer) = poll(&mut future) else { panic!("there is no answer") };
    answer
}
