//! A quorum: what a majority of independent nodes grants is granted.

mod decision;
mod doctor;
mod leave;
mod node;
mod node_claim;
mod operator;
mod place;
mod records;
mod session;
mod stragglers;

use fencepost_core::sync::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{
    Backend, Capabilities, Claim, ClaimId, ClaimInfo, Clock, Entry, Error, ErrorKind, Eviction, How, Info,
    Listing, Mode, Moment, Name, NoHistory, Operator, Page, RecordStore, Reply, Report, Result, Runtime,
    Token, jitter,
};

use node::Node;
use node_claim::NodeClaim;
use place::QuorumPlace;
use records::QuorumRecords;
use stragglers::Stragglers;

/// A lock for which somebody was refused is taken for contended so long.
const CONTENDED: Duration = Duration::from_secs(2);
/// The number of contended locks that are remembered. Beyond it those that are no longer contended are forgotten.
const REMEMBERED: usize = 1024;
/// An operator's look takes so long at most: a page of a list is many requests.
const LOOK: Duration = Duration::from_secs(2);
/// An operator's request waits for slow nodes at most this long after a majority has answered.
const GRACE: Duration = Duration::from_millis(20);
/// How long an examination of the nodes may take.
const EXAMINATION: Duration = Duration::from_secs(10);

/// A layer over several independent engines: a claim holds a resource when a majority of them grants it.
///
/// All nodes are asked at the same time, and the answer is there as soon as a majority decides it: a minority that is slow or
/// down costs nothing. Wins without a majority are undone; when a vote is split the younger claim yields and the older
/// asks again. A grant lives as long as a majority of *all* nodes keeps it; a node that does not is asked for its vote again with
/// each renewal, so that one node after the other may lose what it granted. Of k permits each takes more than k / (k + 1) of the nodes:
/// majorities that differ would hold more together than there are. Its token is one that a majority of the nodes has given to it
/// alone: mostly the one that was proposed, else the greatest that was answered, written back before the grant is made known.
///
/// Guaranteed: what the nodes guarantee, as long as no majority of them loses what it granted. Not: order of arrival. A node
/// that may have lost its data must refuse by itself until the longest lease has expired; the layer cannot know.
pub struct Quorum(Arc<Shared>);

struct Shared {
    engine: &'static str,
    nodes: Vec<Arc<Node>>,
    need: usize,
    clock: Clock,
    patience: Duration,
    /// How far the nodes' tokens are from our wall clock, in microseconds.
    offset: AtomicI64,
    /// The claims that are held, by their numbers, with their tokens.
    held: Mutex<HashMap<u64, (NodeClaims, Token)>>,
    lingering: Arc<Stragglers>,
    /// Until when locks are taken for contended.
    contended: Mutex<HashMap<Name, Moment>>,
    id: u64,
}

type NodeClaims = Arc<Mutex<Vec<NodeClaim>>>;
type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Quorum {
    /// How long an operation waits for nodes that do not answer while no majority has.
    pub const PATIENCE: Duration = Duration::from_millis(250);

    /// A quorum over these nodes, called `engine` in errors.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) without nodes.
    pub fn new(engine: &'static str, nodes: Vec<Arc<dyn Backend>>, clock: Clock) -> Result<Quorum> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        if nodes.is_empty() {
            return Err(Error::invalid("a quorum has at least one node"));
        }
        let nodes: Vec<_> = nodes.into_iter().map(|node| Arc::new(Node::new(node))).collect();
        Ok(Quorum(Arc::new(Shared {
            engine,
            need: nodes.len() / 2 + 1,
            nodes,
            clock,
            patience: Quorum::PATIENCE,
            offset: AtomicI64::new(0),
            held: Mutex::default(),
            lingering: Arc::default(),
            contended: Mutex::default(),
            id: COUNT.fetch_add(1, Ordering::Relaxed),
        })))
    }

    /// Waits for nodes that do not answer for this long, instead of [`PATIENCE`](Quorum::PATIENCE): for nodes that are far away or busy.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Quorum {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.patience = patience;
        }
        self
    }
}

impl Shared {
    fn proposal(&self) -> Token {
        let wall = self.clock.wall_micros();
        Token::new(wall.saturating_add_signed(self.offset.load(Ordering::Relaxed)).max(1))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u64, (NodeClaims, Token)>> {
        self.held.lock()
    }

    /// Was somebody of this client refused there lately?
    fn is_contended(&self, name: &Name, now: Moment) -> bool {
        let mut contended = self.contended.lock();
        match contended.get(name) {
            Some(until) if *until > now => true,
            Some(_) => {
                contended.remove(name);
                false
            }
            None => false,
        }
    }

    fn note_contended(&self, name: &Name, now: Moment) {
        let mut contended = self.contended.lock();
        if contended.len() >= REMEMBERED {
            contended.retain(|_, until| *until > now);
        }
        if let Some(until) = contended.get_mut(name) {
            *until = now + CONTENDED;
        } else if contended.len() < REMEMBERED {
            contended.insert(name.clone(), now + CONTENDED);
        }
    }

    /// How many nodes must grant a claim in this mode. A majority, where claims exclude each other. Claims for more than the k permits that
    /// there are must be too many for one of the nodes, whichever they hold: so many that k + 1 times as many are more than k times all.
    fn need_of(&self, mode: Mode) -> usize {
        let Mode::Permits { of, .. } = mode else { return self.need };
        let (nodes, permits) = (self.nodes.len() as u64, u64::from(of));
        self.need.max((nodes * permits / (permits + 1)) as usize + 1)
    }

    fn unreachable(&self) -> Error {
        Error::new(ErrorKind::Unreachable, self.too_few(self.need)).on(self.engine)
    }

    fn too_few(&self, need: usize) -> String {
        format!("fewer than {need} of {} nodes give their vote; check them", self.nodes.len())
    }

    /// Asks all nodes. Waits for a majority, and for the others a little longer. While `is_clear` finds the answers of those unclear, the others
    /// are waited for as long as for a majority.
    async fn ask_all<'a, T: Send + Unpin + 'a>(
        &'a self,
        ask: impl Fn(&'a dyn Backend) -> Reply<'a, Result<T>>,
        is_clear: impl Fn(&[&T]) -> bool,
    ) -> Result<Vec<T>> {
        let jobs = self.nodes.iter().map(|node| {
            let reply = ask(&*node.backend);
            Box::pin(reply) as Job<'a, Result<T>>
        });
        let rest = |answers: &[Option<Result<T>>]| {
            let good: Vec<&T> = answers.iter().flatten().filter_map(|answer| answer.as_ref().ok()).collect();
            let grace = || if is_clear(&good) { GRACE } else { self.patience };
            (good.len() >= self.need).then(grace)
        };
        self.answers(gather(&self.clock, LOOK, jobs.collect(), rest).await)
    }

    /// Returns the part of the claim that was granted with this token, as the first node shows it that answers.
    async fn find_part(&self, name: &Name, token: Token) -> Option<ClaimInfo> {
        let looks = self.nodes.iter().map(|node| {
            let look = async move {
                let info = node.backend.operator().inspect(name).await.ok()?;
                info.claims.into_iter().find(|claim| claim.token == Some(token))
            };
            Box::pin(look) as Job<'_, Option<ClaimInfo>>
        });
        let found = |answers: &[Option<Option<ClaimInfo>>]| {
            answers.iter().flatten().any(Option::is_some).then_some(GRACE)
        };
        gather(&self.clock, self.patience, looks.collect(), found)
            .await
            .into_iter()
            .flatten()
            .flatten()
            .next()
    }

    /// Returns the good answers, if they are of a majority. Of the errors, one that no later try mends is told, or else the first one beside the
    /// count.
    fn answers<T>(&self, answers: Vec<Option<Result<T>>>) -> Result<Vec<T>> {
        let (good, failed): (Vec<_>, Vec<_>) = answers.into_iter().flatten().partition(Result::is_ok);
        if good.len() >= self.need {
            return good.into_iter().collect();
        }
        Err(self.too_few_answers(failed.into_iter().filter_map(Result::err).collect()))
    }

    /// The error of a request that too few nodes have answered, of which these have failed.
    fn too_few_answers(&self, mut failed: Vec<Error>) -> Error {
        if let Some(lasting) = failed.iter().position(Error::is_configuration) {
            return failed.swap_remove(lasting);
        }
        match failed.into_iter().next() {
            Some(first) => self.unreachable().because(first),
            None => self.unreachable(),
        }
    }
}

/// Evicts the claim at one node. The node may have granted `known`, a part of this claim at another node, with another token.
async fn evict_at(
    node: &dyn Backend,
    name: &Name,
    token: Token,
    known: Option<&ClaimInfo>,
    how: &Eviction,
) -> Result<()> {
    let operator = node.operator();
    let evicted = operator.evict(name, token, how).await;
    let Some(known) = known.filter(|_| evicted.as_ref().is_err_and(Error::is_mismatch)) else {
        return evicted;
    };
    // Without a look nobody knows whether it has such a part.
    let info = operator.inspect(name).await?;
    let mut parts = info.holders().filter(|part| operator::claim_of(part) == operator::claim_of(known));
    match parts.find_map(|part| part.token) {
        Some(other) => operator.evict(name, other, how).await,
        None => evicted,
    }
}

/// Runs all jobs until they are done, or `patience` is over. `rest` is told each new answer, and says how long the others are waited for
/// from then on, if that is known.
async fn gather<T>(
    clock: &Clock,
    patience: Duration,
    mut jobs: Vec<Job<'_, T>>,
    rest: impl Fn(&[Option<T>]) -> Option<Duration>,
) -> Vec<Option<T>> {
    let mut answers: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    let mut until = clock.now() + patience;
    let mut sleep = clock.sleep_until(until);
    poll_fn(|cx| {
        let mut is_new = false;
        for (job, answer) in jobs.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(value) = job.as_mut().poll(cx)
            {
                *answer = Some(value);
                is_new = true;
            }
        }
        if answers.iter().all(Option::is_some) {
            return Poll::Ready(());
        }
        if is_new && let Some(rest) = rest(&answers) {
            until = until.min(clock.now() + rest);
            sleep = clock.sleep_until(until);
        }
        Pin::new(&mut sleep).poll(cx)
    })
    .await;
    answers
}

impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::full(self.0.engine);
        all.clock_tokens = true;
        for node in &self.0.nodes {
            all = all.and(&node.backend.capabilities());
        }
        // Its nodes are what others have replicas for.
        (all.replicas, all.fair, all.barging) = (false, false, false);
        (all.history, all.upgrade, all.stored_permits) = (false, false, false);
        all.no_history = Some(NoHistory {
            kind: ErrorKind::Unsupported,
            why: "its nodes agree on grants alone, and each would keep another record; use one engine for jobs with runs",
        });
        all
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = QuorumPlace::new(&self.0, Arc::clone(&claim), how == How::Attach);
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        let shared = &self.0;
        Reply::coming(async move { shared.ask_all(|node| node.reach(), |_| true).await.map(drop) })
    }

    fn leave_caller_runtime(&self) {
        self.0.nodes.iter().for_each(|node| node.backend.leave_caller_runtime());
    }

    fn close(&self) -> Reply<'_, ()> {
        let shared = &self.0;
        Reply::coming(async move {
            let jobs =
                shared.nodes.iter().map(|node| Box::pin(node.backend.close()) as Job<'_, ()>).collect();
            gather(&shared.clock, Duration::from_secs(5), jobs, |_| None).await;
        })
    }
}

impl Operator for Quorum {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        let shared = &self.0;
        Reply::coming(async move {
            let info = |answers: &[&Info]| operator::info(shared, name.clone(), answers);
            // A node that did not answer yet may have voted for it, or not.
            let is_clear = |answers: &[&Info]| !info(answers).claims.iter().any(|claim| claim.unconfirmed);
            let answers = shared.ask_all(|node| node.operator().inspect(name), is_clear).await?;
            Ok(info(&answers.iter().collect::<Vec<_>>()))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        let shared = &self.0;
        Reply::coming(async move {
            let answers = shared.ask_all(|node| node.operator().list(prefix, page), |_| true).await?;
            Ok(operator::listing(shared, answers, page))
        })
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        let shared = &self.0;
        Reply::coming(async move {
            let known = shared.find_part(name, token).await;
            let evictions = shared.nodes.iter().map(|node| {
                let evicted = evict_at(&*node.backend, name, token, known.as_ref(), how);
                Box::pin(evicted) as Job<'_, Result<()>>
            });
            // All are heard out: what a slow node has not done by the time that it is given up stays there until the lease ends, and that
            // of a detached lease may be a day away.
            let answers = gather(&shared.clock, LOOK, evictions.collect(), |_| None).await;
            let evicted = answers.iter().filter(|answer| matches!(answer, Some(Ok(())))).count();
            let errors = answers.into_iter().flatten().filter_map(Result::err);
            let (mismatches, failures): (Vec<_>, Vec<_>) = errors.partition(Error::is_mismatch);
            let gone = mismatches.len();
            match mismatches.into_iter().next() {
                // Its holder hears of it from the first node, and may have left the others before they were asked.
                _ if evicted > 0 && evicted + gone >= shared.need => Ok(()),
                Some(first) if gone > shared.nodes.len() - shared.need => Err(first),
                _ => Err(shared.too_few_answers(failures).unknown()),
            }
        })
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::new(QuorumRecords::new(&self.0, runtime)?))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        let shared = &self.0;
        Reply::coming(async move {
            let jobs = shared.nodes.iter().map(|node| {
                let reply = node.backend.operator().examine();
                Box::pin(reply) as Job<'_, Result<Report>>
            });
            // Nobody waits for a lock here: the slow ones are heard out.
            let answers = gather(&shared.clock, EXAMINATION, jobs.collect(), |_| None).await;
            Ok(doctor::merged(answers, shared.need))
        })
    }
}

/// Returns a moment `base` to twice `base` from now. Claims and counts that differ get other moments.
fn jittered(now: Moment, base: Duration, id: ClaimId, count: u32) -> Moment {
    now + jitter(base * 2, (id.derive(count).as_u128() >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use fencepost_core::Memory;

    use super::*;

    #[test]
    fn pauses_are_spread_between_the_base_and_twice_that() {
        let (now, base) = (Moment::ZERO + Duration::from_secs(7), Duration::from_millis(1_024));
        let pauses = (0..200).map(|id| jittered(now, base, ClaimId::from_u128(id), 1).since(now));
        let mut pauses: Vec<_> = pauses.collect();
        pauses.sort_unstable();
        let (first, last) = (pauses[0], pauses[199]);
        assert!(first >= base && first < base * 5 / 4, "{first:?}");
        assert!(last < base * 2 && last > base * 7 / 4, "{last:?}");
    }

    #[test]
    fn a_name_is_contended_for_a_while_and_few_are_remembered() {
        let nodes = (0..3).map(|_| Memory::new() as Arc<dyn Backend>).collect();
        let Quorum(shared) = Quorum::new("quorum", nodes, Clock::manual()).unwrap();
        let name = |number: usize| Name::new(&format!("lock/{number}")).unwrap();
        let now = Moment::ZERO + Duration::from_secs(7);
        let end = now + CONTENDED;
        (0..=REMEMBERED).for_each(|number| shared.note_contended(&name(number), now));
        assert!(shared.is_contended(&name(0), end.less(Duration::from_nanos(1))));
        assert!(!shared.is_contended(&name(REMEMBERED), now), "there is no room for it");
        assert!(!shared.is_contended(&name(0), end));
        // One that was noted later stays when the old ones go.
        shared.note_contended(&name(0), now + CONTENDED / 2);
        shared.note_contended(&name(REMEMBERED), end);
        assert!(shared.is_contended(&name(0), end) && shared.is_contended(&name(REMEMBERED), end));
        assert_eq!(shared.contended.lock().len(), 2);
    }
}
