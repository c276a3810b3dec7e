//! Renewal of everything a client holds, and of its places in line.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::aid::Aid;
use crate::backend::{Session, Stake};
use crate::claim::{Claim, ClaimId};
use crate::error::ErrorKind;
use crate::life::{Doubt, State};
use crate::time::Moment;

/// `Claim::kept` while a round is under way for it.
const IN_FLIGHT: u64 = u64::MAX;
/// What is due within this time is renewed along, or within a tenth of its lease if that is shorter.
const SLACK: Duration = Duration::from_secs(1);
/// Nothing is asked for again sooner.
const AT_ONCE: Duration = Duration::from_millis(20);

/// One per client: renews stakes at a third of their lease, batched by session, from an ordered map, never by a scan. One
/// task for all of it, one more for each round under way; a session that does not answer delays no other.
#[derive(Clone)]
pub(crate) struct Keeper(Arc<Shared>);

struct Shared {
    aid: Aid,
    state: Mutex<Stakes>,
}

/// How many stakes are put back while the lock is held.
const FEW: usize = 100;

/// In the order in which they are due, then by their claims' ids, folded: no two of a client meet, but with odds of 2^-64.
type Key = (Moment, u64);

fn key(due: Moment, claim: &Claim) -> Key {
    let id = claim.id.as_u128();
    (due, (id ^ (id >> 64)) as u64)
}

/// What is renewed together.
type Round = (Arc<dyn Session>, Vec<Arc<Claim>>);

struct Stakes {
    due: BTreeMap<Key, Stake>,
    /// The stake that came last, outside of the map: most locks are released before the next one comes.
    newest: Option<(Key, Stake)>,
    /// Stakes that came while a round was under way for their claims: they take the place of those in the round.
    instead: BTreeMap<ClaimId, Stake>,
    /// When the task will wake. It may wake for nothing: taking a stake back does not move this.
    planned: Moment,
    waker: Option<Waker>,
}

impl Keeper {
    /// A keeper whose task runs on the aid's host.
    pub(crate) fn start(aid: &Aid) -> Keeper {
        let (due, instead) = (BTreeMap::new(), BTreeMap::new());
        let stakes = Stakes { due, newest: None, instead, planned: Moment::NEVER, waker: None };
        let keeper = Keeper(Arc::new(Shared { aid: aid.clone(), state: Mutex::new(stakes) }));
        let weak = Arc::downgrade(&keeper.0);
        aid.spawn(async move {
            // The task ends with the last guard and the client, which hold the strong references.
            while let Some(shared) = weak.upgrade() {
                let clock = shared.aid.clock().clone();
                drop(shared);
                let mut sleep: Option<(Moment, crate::time::Sleep)> = None;
                let alive = poll_fn(|cx| {
                    let Some(shared) = weak.upgrade() else { return Poll::Ready(false) };
                    let mut stakes = shared.stakes();
                    stakes.waker = Some(cx.waker().clone());
                    let first = stakes.first();
                    stakes.planned = first;
                    drop(stakes);
                    if sleep.as_ref().is_none_or(|(at, _)| *at != first) {
                        sleep = Some((first, clock.sleep_until(first)));
                    }
                    sleep.as_mut().map_or(Poll::Pending, |(_, sleep)| Pin::new(sleep).poll(cx)).map(|()| true)
                })
                .await;
                if !alive {
                    break;
                }
                if let Some(shared) = weak.upgrade() {
                    Shared::start_rounds(&shared);
                }
            }
        });
        keeper
    }

    /// Renews this stake from now on, until it is forgotten or over.
    pub(crate) fn keep(&self, stake: Stake) {
        let due = stake.claim.life.due();
        if due == Moment::NEVER {
            return;
        }
        let mut stakes = self.0.stakes();
        stakes.remove(&stake.claim);
        if stake.claim.kept.load(Ordering::Relaxed) == IN_FLIGHT {
            stakes.instead.insert(stake.claim.id, stake);
        } else {
            stakes.insert(due, stake);
        }
    }

    /// Renews this claim no more.
    pub(crate) fn forget(&self, claim: &Claim) {
        if claim.kept.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut stakes = self.0.stakes();
        let forgotten = (stakes.remove(claim), stakes.instead.remove(&claim.id));
        // A round under way finds the zero and does not put it back.
        claim.kept.store(0, Ordering::Relaxed);
        drop(stakes);
        drop(forgotten);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let stakes = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = stakes.waker.take() {
            waker.wake();
        }
    }
}

impl Stakes {
    fn insert(&mut self, due: Moment, stake: Stake) {
        stake.claim.kept.store(due.as_nanos(), Ordering::Relaxed);
        if let Some((key, stake)) = self.newest.replace((key(due, &stake.claim), stake)) {
            self.due.insert(key, stake);
        }
        if due < self.planned {
            self.planned = due;
            if let Some(waker) = &self.waker {
                waker.wake_by_ref();
            }
        }
    }

    fn remove(&mut self, claim: &Claim) -> Option<Stake> {
        match claim.kept.load(Ordering::Relaxed) {
            0 | IN_FLIGHT => None,
            _ if self.newest.as_ref().is_some_and(|(_, newest)| newest.claim.id == claim.id) => {
                self.newest.take().map(|(_, stake)| stake)
            }
            due => self.due.remove(&key(Moment::from_nanos(due), claim)),
        }
    }

    fn first(&self) -> Moment {
        let newest = self.newest.as_ref().map(|((at, _), _)| *at);
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        newest.into_iter().chain(first).min().unwrap_or(Moment::NEVER)
    }

    /// Takes out what is due, or nearly.
    fn take_due(&mut self, now: Moment) -> Vec<Stake> {
        self.due.extend(self.newest.take());
        let later = self.due.split_off(&(now + SLACK, 0));
        let near = std::mem::replace(&mut self.due, later);
        let mut taken = Vec::with_capacity(near.len());
        for (key, stake) in near {
            if key.0 <= now + (stake.claim.ttl() / 10).min(SLACK) {
                stake.claim.kept.store(IN_FLIGHT, Ordering::Relaxed);
                taken.push(stake);
            } else {
                self.due.insert(key, stake);
            }
        }
        taken
    }
}

impl Shared {
    fn stakes(&self) -> MutexGuard<'_, Stakes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_rounds(self: &Arc<Self>) {
        let now = self.aid.clock().now();
        let due = self.stakes().take_due(now);
        let mut rounds: BTreeMap<u64, Round> = BTreeMap::new();
        for Stake { claim, session } in due {
            rounds.entry(session.id()).or_insert_with(|| (session, Vec::new())).1.push(claim);
        }
        for (session, claims) in rounds.into_values() {
            let shared = Arc::clone(self);
            self.aid.spawn(async move { shared.round(session, claims).await });
        }
    }

    async fn round(&self, session: Arc<dyn Session>, claims: Vec<Arc<Claim>>) {
        let clock = self.aid.clock();
        let start = clock.now();
        // After the last of these lives there is nothing left to renew. Places in line have none: they get 5 s.
        let bound =
            claims.iter().filter(|claim| claim.life.is_confirmed()).map(|claim| claim.life.until()).max();
        let bound = bound.unwrap_or(Moment::ZERO).max(start + Duration::from_secs(5));
        // If this future is dropped here the client's host has stopped: the lives run out by the clock.
        let answer = clock.within(bound, session.keep(&claims)).await;
        let trouble = match answer {
            Some(Ok(())) => None,
            Some(Err(error)) => {
                let trouble = Doubt::of(error);
                tracing::debug!(why = &*trouble.why, claims = claims.len(), "renewal failed, trying again");
                Some(trouble)
            }
            None => Some(Doubt {
                why: "the engine did not answer".into(),
                kind: ErrorKind::Unreachable,
                transient: true,
            }),
        };
        let now = clock.now();
        // A few at a time: who locks or releases waits for no more than that.
        let mut claims = claims.into_iter();
        let mut again = Vec::with_capacity(FEW);
        while claims.len() > 0 {
            for claim in claims.by_ref().take(FEW) {
                match next_due(&claim, trouble.as_ref(), start, now) {
                    Some(due) => again.push((due, Stake { claim, session: Arc::clone(&session) })),
                    None => {
                        self.stakes().instead.remove(&claim.id);
                        crate::telemetry::dropped_by_keeper(&claim);
                    }
                }
            }
            let mut stakes = self.stakes();
            for (due, stake) in again.drain(..) {
                // Forgotten meanwhile: its guard is being released.
                if stake.claim.kept.load(Ordering::Relaxed) == IN_FLIGHT {
                    let stake = stakes.instead.remove(&stake.claim.id).unwrap_or(stake);
                    stakes.insert(due, stake);
                }
            }
        }
    }
}

/// When the claim is to be renewed next, after a round that began at `start`; `None`: it is over.
fn next_due(claim: &Claim, trouble: Option<&Doubt>, start: Moment, now: Moment) -> Option<Moment> {
    let life = &claim.life;
    if life.ended().is_some() {
        return None;
    }
    let confirmed = life.is_confirmed();
    if confirmed && matches!(life.state(now), State::Lost(_)) {
        return None;
    }
    match trouble {
        _ if confirmed => {}
        // The engine is away since the request was sent, and not since it was given up.
        Some(trouble) => life.strand(start, trouble.clone()),
        None => life.unstrand(),
    }
    let due = life.due();
    // The round failed for others, and has renewed this one.
    if confirmed && due > now + (claim.ttl() / 10).min(SLACK) {
        return Some(due);
    }
    // A place in line whose answer says "ask again at once" is asked about at once, or nearly.
    if trouble.is_none() && (due > now || !confirmed) {
        return Some(due.max(now + AT_ONCE));
    }
    if confirmed {
        life.doubt_by(trouble.cloned());
    }
    // Try again soon, and more often as the end comes near.
    let left = if confirmed { life.until().since(now) } else { claim.ttl() };
    Some(now + (left / 8).clamp(AT_ONCE, SLACK))
}
