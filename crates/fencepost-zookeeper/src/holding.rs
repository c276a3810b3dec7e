//! What a client holds, and when it gives it back by itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use fencepost_core::{Claim, Clock, Loss, Moment, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::held::{due, watch};
use crate::link::Link;

/// How often a node that must go is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// The claim's own lease ends `ttl` after `now`, if the session lasts as long. ZooKeeper knows sessions only: the end of a lease
/// that is shorter than its session is this client's own doing, which deletes the node then.
pub(crate) fn extend(claim: &Claim, now: Moment) {
    let ttl = claim.ttl();
    if claim.confirm(now, ttl) {
        claim.note.fetch_max((now + ttl).as_nanos(), Ordering::Relaxed);
    }
}

/// A grant of this client.
#[derive(Clone)]
pub(crate) struct Holding {
    pub(crate) claim: Arc<Claim>,
    pub(crate) link: Arc<Link>,
    /// Its nodes.
    pub(crate) paths: Vec<String>,
    pub(crate) token: Token,
}

/// All grants of a client, in the order in which they end if nobody renews them.
#[derive(Default)]
pub(crate) struct Holdings(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    all: HashMap<u128, (Moment, Holding)>,
    due: BTreeMap<(Moment, u128), ()>,
    /// Grants whose nodes are to be watched, in the order of their age.
    young: VecDeque<(Moment, u128)>,
    /// When the task will look.
    planned: Option<Moment>,
    waker: Option<Waker>,
}

impl Holdings {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, holding: Holding) {
        let key = holding.claim.id.as_u128();
        let at = Moment::from_nanos(holding.claim.note.load(Ordering::Relaxed));
        let watched = due(holding.link.clock().now());
        let mut inner = self.inner();
        inner.due.insert((at, key), ());
        inner.young.push_back((watched, key));
        if let Some((before, _)) = inner.all.insert(key, (at, holding))
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
        if let Some((at, holding)) = inner.all.remove(&key) {
            inner.due.remove(&(at, key));
            drop(inner);
            drop(holding);
        }
    }

    /// Is the claim's grant still held, and not being released?
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.inner().all.contains_key(&claim.id.as_u128())
    }

    /// Takes out those that have been held for long enough to be watched.
    fn take_old(&self, now: Moment) -> Vec<Holding> {
        let mut inner = self.inner();
        let count = inner.young.partition_point(|(at, _)| *at <= now);
        let old: Vec<_> = inner.young.drain(..count).collect();
        old.iter().filter_map(|(_, key)| inner.all.get(key)).map(|(_, held)| held.clone()).collect()
    }

    /// Those of one session.
    pub(crate) fn of(&self, link: &Link) -> Vec<Holding> {
        let inner = self.inner();
        inner.all.values().filter(|(_, held)| held.link.id == link.id).map(|(_, held)| held.clone()).collect()
    }

    /// The holder of this grant learns that it is over.
    pub(crate) fn evict(&self, token: Token, why: Loss, detail: Option<String>) {
        let inner = self.inner();
        let held: Vec<_> = inner.all.values().filter(|(_, held)| held.token == token).collect();
        let lives: Vec<_> = held.into_iter().map(|(_, held)| Arc::clone(&held.claim)).collect();
        drop(inner);
        for claim in lives {
            match &detail {
                Some(detail) => claim.validity.end_with(why, detail.as_str()),
                None => claim.validity.end(why),
            }
        }
    }

    /// Takes out those whose own lease is over; those that were renewed meanwhile come later.
    fn take_due(&self, now: Moment) -> Vec<Holding> {
        let mut inner = self.inner();
        let later = inner.due.split_off(&(now + Duration::from_nanos(1), 0));
        let due = std::mem::replace(&mut inner.due, later);
        let mut over = Vec::new();
        for ((_, key), ()) in due {
            let Some((at, held)) = inner.all.get_mut(&key) else { continue };
            let end = Moment::from_nanos(held.claim.note.load(Ordering::Relaxed));
            // Who was evicted has its node as long: its program may still be at work, and the next one is told by the node.
            if end > now {
                *at = end;
                inner.due.insert((end, key), ());
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
        let first = inner.due.first_key_value().map_or(Moment::NEVER, |((at, _), ())| *at);
        let first = inner.young.front().map_or(first, |(at, _)| first.min(*at));
        inner.planned = Some(first);
        first
    }

    /// Wakes the task, which looks whether it is still needed.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.inner().waker.take() {
            waker.wake();
        }
    }
}

/// Gives back what is over, and has watched what is held for a while, as long as the client is there.
pub(crate) async fn give_back(holdings: Weak<Holdings>, clock: Clock) {
    loop {
        let mut sleep: Option<(Moment, fencepost_core::Sleep)> = None;
        let alive = poll_fn(|cx| {
            let Some(holdings) = holdings.upgrade() else { return Poll::Ready(false) };
            let first = holdings.first(cx.waker());
            if sleep.as_ref().is_none_or(|(at, _)| *at != first) {
                sleep = Some((first, clock.sleep_until(first)));
            }
            sleep.as_mut().map_or(Poll::Pending, |(_, sleep)| Pin::new(sleep).poll(cx)).map(|()| true)
        })
        .await;
        let Some(all) = holdings.upgrade().filter(|_| alive) else { return };
        all.take_old(clock.now()).iter().for_each(|held| watch(&all, held));
        for held in all.take_due(clock.now()) {
            let runtime = held.claim.runtime.clone();
            runtime.spawn(async move { delete(&held.link, held.paths).await });
        }
    }
}

/// Deletes nodes until the server has confirmed it, or their session has ended.
pub(crate) async fn delete(link: &Link, mut paths: Vec<String>) {
    while !link.is_over() {
        let sent = link.clock().now();
        let asked = paths.iter().map(|path| link.delete(path.clone()));
        let Ok(answers) = link.within(join_all(asked)).await else { continue };
        let mut left = Vec::new();
        for (path, answer) in paths.into_iter().zip(answers) {
            match answer {
                Ok(()) => link.confirm(sent),
                Err(zk::Error::NoNode) => {}
                Err(zk::Error::NoAuth) => tracing::warn!("a node could not be deleted; its session ends it"),
                Err(_) => left.push(path),
            }
        }
        if left.is_empty() {
            return;
        }
        paths = left;
        link.clock().sleep_until(link.clock().now() + AGAIN).await;
    }
}
