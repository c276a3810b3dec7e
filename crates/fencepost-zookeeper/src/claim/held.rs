//! The grants of a client, and the end of leases that are shorter than their session.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Clock, DueKey, DueQueue, HolderInfo, Loss, Moment, Token};
use futures_util::future::{Either, MaybeDone, join_all, maybe_done, select};
use zookeeper_client as zk;

use crate::claim::deleted::{due, watch};
use crate::session::{Request, Session};

/// The pause before a deletion that failed is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// The time limit of the reading of the notice. The next claim may hold by then, so the holder is told within 100 ms, even without it.
const REASON_TIMEOUT: Duration = Duration::from_millis(50);
/// The time after which the notice is read behind a request that is still without an answer. A notice that is read after an earlier answer is
/// in time, because its answer takes about as long.
const HEAD_START: Duration = Duration::from_millis(10);
/// The most notices that are remembered of grants that are not known yet.
const MAX_NOTICES: usize = 1_024;

/// A grant of this client.
#[derive(Clone)]
pub(crate) struct HeldGrant {
    pub(crate) claim: Arc<Claim>,
    pub(crate) session: Arc<Session>,
    /// The paths of its nodes.
    pub(crate) paths: Vec<String>,
    pub(crate) token: Token,
}

impl HeldGrant {
    /// Returns the path of its first node.
    pub(crate) fn path(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }
}

/// All grants of a client.
pub(crate) struct HeldGrants {
    inner: Mutex<Inner>,
    /// The folder of the notices of eviction.
    pub(crate) notices: String,
    /// The number of bytes in the paths of watched nodes.
    pub(crate) watched: AtomicUsize,
    /// The session whose notices of eviction are followed.
    pub(crate) followed: AtomicI64,
}

#[derive(Default)]
struct Inner {
    all: HashMap<u128, (Moment, HeldGrant)>,
    due: DueQueue<(u128, Due)>,
    /// The reasons in the notices of eviction, by token, whose grants are not known, or not yet, or are being ended.
    noticed: BTreeMap<Token, String>,
}

/// The work that is due for a grant.
#[derive(Clone, Copy, PartialEq)]
enum Due {
    /// Its nodes are to be watched.
    Watch,
    /// It ends if it was not renewed.
    End,
}

/// Returns the key of a grant in the queue. The two of one grant differ.
fn key(at: Moment, id: u128, what: Due) -> DueKey {
    let folded = (id ^ (id >> 64)) as u64;
    (at, if what == Due::End { folded } else { !folded })
}

impl HeldGrants {
    pub(crate) fn new(root: &str) -> HeldGrants {
        HeldGrants {
            inner: Mutex::default(),
            notices: format!("{root}/.fencepost/evicted"),
            watched: AtomicUsize::new(0),
            followed: AtomicI64::new(0),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn insert(&self, held: HeldGrant) {
        let id = held.claim.id.as_u128();
        let at = Moment::from_nanos(held.claim.note.load(Ordering::Relaxed));
        let watched = due(held.session.clock().now());
        let mut inner = self.inner();
        for (at, what) in [(watched, Due::Watch), (at, Due::End)] {
            // It may have been held before, with the same end.
            inner.due.remove(key(at, id, what));
            inner.due.insert(key(at, id, what), (id, what));
        }
        if let Some((before, _)) = inner.all.insert(id, (at, held))
            && before != at
        {
            inner.due.remove(key(before, id, Due::End));
        }
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        let id = claim.id.as_u128();
        let mut inner = self.inner();
        if let Some((at, held)) = inner.all.remove(&id) {
            inner.due.remove(key(at, id, Due::End));
            drop(inner);
            drop(held);
        }
    }

    /// Returns whether the claim's grant is held, and is not being released.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.inner().all.contains_key(&claim.id.as_u128())
    }

    /// Returns the grants of one session.
    pub(crate) fn of(&self, session: &Session) -> Vec<HeldGrant> {
        let inner = self.inner();
        let own = inner.all.values().filter(|(_, held)| held.session.id == session.id);
        own.map(|(_, held)| held.clone()).collect()
    }

    /// Ends a grant whose node is marked, or whose node `gone` is deleted and was not seen marked. An eviction makes its notice before it deletes
    /// the node, so a holder that learns of the deletion first still finds the notice. It is too far away for that only if it was told of the
    /// deletion without a request, because a slow [request](with_notice) has the reading of the notice behind it. A reason that is read later
    /// is added to an eviction.
    pub(crate) async fn end(&self, held: &HeldGrant, gone: Option<&str>, mut notice: NoticeReading) {
        let reason = match self.reason(held.token) {
            Some(reason) => Some(reason),
            None => {
                let clock = held.session.clock();
                clock.within(clock.now() + REASON_TIMEOUT, &mut notice).await;
                Pin::new(&mut notice).take_output().flatten()
            }
        };
        // The deletion is no loss if the holder has released the grant, or begins to.
        if !self.has(&held.claim) {
            return;
        }
        let validity = &held.claim.validity;
        match (reason, gone) {
            (None, Some(path)) => validity.end_with(Loss::Deleted, format!("its node {path} was deleted")),
            (reason, _) => validity.end_with(Loss::Evicted, reason.unwrap_or_default()),
        }
    }

    /// Reads the notice to a grant, from the first poll on.
    pub(crate) fn read_notice(&self, held: &HeldGrant) -> NoticeReading {
        let (session, path) = (Arc::clone(&held.session), self.notice(held.session.id, held.token));
        maybe_done(Box::pin(async move {
            match read_notice(&session, path).await {
                Ok(reason) => Some(reason),
                // The client that made it may hide the reason.
                Err(zk::Error::NoAuth) => Some(String::new()),
                Err(_) => None,
            }
        }))
    }

    /// Returns the path of the notice to a grant.
    pub(crate) fn notice(&self, session: i64, token: Token) -> String {
        format!("{}/{session:x}-{token}", self.notices)
    }

    /// Notes what the notices of eviction say.
    pub(crate) fn note(&self, notices: impl Iterator<Item = (Token, String)>) {
        let mut inner = self.inner();
        inner.noticed.extend(notices);
        while inner.noticed.len() > MAX_NOTICES {
            inner.noticed.pop_first();
        }
    }

    /// Returns what the notice to the grant with this token says. `None`: no notice was read.
    pub(crate) fn reason(&self, token: Token) -> Option<String> {
        self.inner().noticed.get(&token).cloned()
    }

    /// Forgets a notice of eviction.
    pub(crate) fn forget(&self, token: Token) {
        self.inner().noticed.remove(&token);
    }

    /// Returns the grants that have been held long enough for a watch. Takes out those whose own lease has expired; those that were renewed
    /// meanwhile stay.
    fn take_due(&self, now: Moment) -> (Vec<HeldGrant>, Vec<HeldGrant>) {
        let mut inner = self.inner();
        let (mut old, mut over) = (Vec::new(), Vec::new());
        for (id, what) in inner.due.take_due(now).into_values() {
            let Some((at, held)) = inner.all.get_mut(&id) else { continue };
            if what == Due::Watch {
                old.push(held.clone());
                continue;
            }
            let end = Moment::from_nanos(held.claim.note.load(Ordering::Relaxed));
            // An evicted holder keeps its node as long: its program may still be at work, and the node keeps others out.
            if end > now {
                *at = end;
                inner.due.insert(key(end, id, what), (id, what));
            } else if let Some((_, held)) = inner.all.remove(&id) {
                over.push(held);
            }
        }
        (old, over)
    }
}

/// The reading of the notice to a grant. `None`: there is none, or it cannot be read.
pub(crate) type NoticeReading = MaybeDone<Pin<Box<dyn Future<Output = Option<String>> + Send>>>;

/// Waits for the answer to a request that may find that the node of a grant is gone. If the answer takes long, the reading of the grant's notice
/// is sent behind that request. The server handles both in this order, so the reading finds the notice of an eviction that has deleted the node,
/// and its answer comes at about the same time.
pub(crate) async fn with_notice<T>(
    clock: &Clock,
    mut request: Request<T>,
    notice: &mut NoticeReading,
) -> Result<T, zk::Error> {
    // Most answers come earlier and say that the node is there, so the notice costs them no request.
    if let Some(answer) = clock.within(clock.now() + HEAD_START, &mut request).await {
        return answer;
    }
    match select(request, notice).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, request)) => request.await,
    }
}

/// Reads what a notice says. Every client may make notices, of up to 1 MB, so a text is cut to the length of a reason.
pub(crate) async fn read_notice(session: &Session, path: String) -> Result<String, zk::Error> {
    let (text, _) = session.data(path).await?;
    let text = String::from_utf8_lossy(&text[..text.len().min(HolderInfo::MAX_BYTES)]);
    Ok(HolderInfo::cut(text.into_owned()))
}

/// Releases grants whose lease has expired and has old ones watched, as long as the client is there.
pub(crate) async fn give_back(weak: Weak<HeldGrants>, clock: Clock) {
    while let Some(grants) = clock.next_due(&weak, |grants, waker| grants.inner().due.plan(waker)).await {
        let (old, over) = grants.take_due(clock.now());
        old.iter().for_each(|held| watch(&grants, held));
        for held in over {
            let runtime = held.claim.runtime.clone();
            runtime.spawn(async move { delete(&held.session, held.paths).await });
        }
    }
}

/// Deletes nodes until the server has confirmed it, or their session has ended.
pub(crate) async fn delete(session: &Session, mut paths: Vec<String>) {
    while !session.is_over() {
        let sent = session.clock().now();
        let requests = paths.iter().map(|path| session.delete(path.clone()));
        let Ok(answers) = session.within(join_all(requests)).await else { continue };
        let mut left = Vec::new();
        for (path, answer) in paths.into_iter().zip(answers) {
            match answer {
                Ok(()) => session.confirm(sent),
                Err(zk::Error::NoNode) => {}
                Err(zk::Error::NoAuth) => tracing::warn!("a node could not be deleted; its session ends it"),
                Err(_) => left.push(path),
            }
        }
        if left.is_empty() {
            return;
        }
        paths = left;
        session.clock().sleep_until(session.clock().now() + RETRY).await;
    }
}
