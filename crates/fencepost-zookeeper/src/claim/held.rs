//! The grants of a client, and the end of leases that are shorter than their session.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Claim, Clock, Loss, Moment, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::claim::deleted::{due, watch};
use crate::session::Session;

/// The pause before a deletion that failed is tried again.
const RETRY: Duration = Duration::from_millis(200);
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

/// All grants of a client, ordered by the time at which they end if nobody renews them.
#[derive(Default)]
pub(crate) struct HeldGrants {
    inner: Mutex<Inner>,
    /// The number of bytes in the paths of watched nodes.
    pub(crate) watched: AtomicUsize,
    /// The session whose notices of eviction are followed.
    pub(crate) followed: AtomicI64,
}

#[derive(Default)]
struct Inner {
    all: HashMap<u128, (Moment, HeldGrant)>,
    due: BTreeSet<(Moment, u128)>,
    /// Grants whose nodes are to be watched, ordered by their age.
    young: VecDeque<(Moment, u128)>,
    /// Tokens with a notice of eviction whose grants are not known, or not yet.
    noticed: BTreeSet<Token>,
    /// The time at which the task of [`give_back`] will run.
    planned: Option<Moment>,
    waker: Option<Waker>,
}

impl HeldGrants {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn insert(&self, held: HeldGrant) {
        let key = held.claim.id.as_u128();
        let at = Moment::from_nanos(held.claim.note.load(Ordering::Relaxed));
        let watched = due(held.session.clock().now());
        let mut inner = self.inner();
        inner.due.insert((at, key));
        inner.young.push_back((watched, key));
        if let Some((before, _)) = inner.all.insert(key, (at, held))
            && before != at
        {
            inner.due.remove(&(before, key));
        }
        if inner.planned.is_none_or(|planned| at.min(watched) < planned)
            && let Some(waker) = &inner.waker
        {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        let key = claim.id.as_u128();
        let mut inner = self.inner();
        if let Some((at, held)) = inner.all.remove(&key) {
            inner.due.remove(&(at, key));
            drop(inner);
            drop(held);
        }
    }

    /// Returns whether the claim's grant is held, and is not being released.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.inner().all.contains_key(&claim.id.as_u128())
    }

    /// Takes out the grants that have been held long enough for a watch.
    fn take_old(&self, now: Moment) -> Vec<HeldGrant> {
        let mut inner = self.inner();
        let count = inner.young.partition_point(|(at, _)| *at <= now);
        let old: Vec<_> = inner.young.drain(..count).collect();
        old.iter().filter_map(|(_, key)| inner.all.get(key)).map(|(_, held)| held.clone()).collect()
    }

    /// Returns the grants of one session.
    pub(crate) fn of(&self, session: &Session) -> Vec<HeldGrant> {
        let inner = self.inner();
        let own = inner.all.values().filter(|(_, held)| held.session.id == session.id);
        own.map(|(_, held)| held.clone()).collect()
    }

    /// Remembers notices of eviction.
    pub(crate) fn notice(&self, tokens: impl Iterator<Item = Token>) {
        let mut inner = self.inner();
        inner.noticed.extend(tokens);
        while inner.noticed.len() > MAX_NOTICES {
            inner.noticed.pop_first();
        }
    }

    /// Forgets a notice of eviction. Returns whether there was one.
    pub(crate) fn take_notice(&self, token: Token) -> bool {
        self.inner().noticed.remove(&token)
    }

    /// Ends the validity of the grant with this token.
    pub(crate) fn end(&self, token: Token, why: Loss, detail: Option<String>) {
        let inner = self.inner();
        let held = inner.all.values().filter(|(_, held)| held.token == token);
        let claims: Vec<_> = held.map(|(_, held)| Arc::clone(&held.claim)).collect();
        drop(inner);
        for claim in claims {
            match &detail {
                Some(detail) => claim.validity.end_with(why, detail.as_str()),
                None => claim.validity.end(why),
            }
        }
    }

    /// Takes out the grants whose own lease is over; those that were renewed meanwhile stay.
    fn take_due(&self, now: Moment) -> Vec<HeldGrant> {
        let mut inner = self.inner();
        let later = inner.due.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut inner.due, later);
        let mut over = Vec::new();
        for (_, key) in due {
            let Some((at, held)) = inner.all.get_mut(&key) else { continue };
            let end = Moment::from_nanos(held.claim.note.load(Ordering::Relaxed));
            // An evicted holder keeps its node as long: its program may still be at work, and the node keeps others out.
            if end > now {
                *at = end;
                inner.due.insert((end, key));
            } else if let Some((_, held)) = inner.all.remove(&key) {
                over.push(held);
            }
        }
        inner.planned = None;
        over
    }

    fn first(&self, waker: &Waker) -> Moment {
        let mut inner = self.inner();
        inner.waker = Some(waker.clone());
        let first = inner.due.first().map_or(Moment::NEVER, |(at, _)| *at);
        let first = inner.young.front().map_or(first, |(at, _)| first.min(*at));
        inner.planned = Some(first);
        first
    }

    /// Wakes the task of [`give_back`], which ends if the client is gone.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.inner().waker.take() {
            waker.wake();
        }
    }
}

/// Releases grants whose lease is over and has old ones watched, as long as the client is there.
pub(crate) async fn give_back(weak: Weak<HeldGrants>, clock: Clock) {
    loop {
        let mut sleep: Option<(Moment, fencepost_core::Sleep)> = None;
        let alive = poll_fn(|cx| {
            let Some(grants) = weak.upgrade() else { return Poll::Ready(false) };
            let first = grants.first(cx.waker());
            if sleep.as_ref().is_none_or(|(at, _)| *at != first) {
                sleep = Some((first, clock.sleep_until(first)));
            }
            sleep.as_mut().map_or(Poll::Pending, |(_, sleep)| Pin::new(sleep).poll(cx)).map(|()| true)
        })
        .await;
        let Some(grants) = weak.upgrade().filter(|_| alive) else { return };
        grants.take_old(clock.now()).iter().for_each(|held| watch(&grants, held));
        for held in grants.take_due(clock.now()) {
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
