//! The queue of one resource: its holders, the claims that wait, and the votes that were refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::rules::Rules;
use crate::backend::admission::{Held, Mode};
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::backend::{Attempt, Removed};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::holder::ClaimInfo;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{Loss, Validity};

/// How long a refused vote is remembered. A claim that still waits asks again earlier.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// The claims on one resource.
///
/// A change of the queue is made by [`Memory::on_queue`](super::engine::Memory::on_queue), which [settles](MemoryQueue::settle) it before and
/// after. So a change finds no grant whose lease has ended, and no claim that waits although it could hold.
#[derive(Default)]
pub(super) struct MemoryQueue {
    /// In the order of their grants.
    holders: Vec<MemoryHolder>,
    /// By their numbers, which is the order of arrival.
    waiters: BTreeMap<u64, MemoryWaiter>,
    /// The refused votes of a quorum's claims, the oldest first. They are told when it is worth asking again, and granted nothing.
    voters: BTreeMap<(u64, ClaimId), MemoryVoter>,
    /// The stored limit of permits.
    pub(super) limit: Option<u32>,
    /// For when the alarm is set, if it is.
    pub(super) alarm: Option<Moment>,
}

/// A holder.
struct MemoryHolder {
    number: u64,
    claim: Arc<Claim>,
    token: Token,
    mode: Mode,
    since: Moment,
    end: Moment,
    evicted: bool,
    detached: bool,
    /// It reads, and waits until it is the only holder to become exclusive.
    marked: bool,
    /// Of a marked one.
    waker: Option<Waker>,
}

struct MemoryWaiter {
    claim: Arc<Claim>,
    since: Moment,
    waker: Option<Waker>,
}

struct MemoryVoter {
    waiter: MemoryWaiter,
    /// Forgotten then, unless it asks again.
    until: Moment,
    /// It was told to ask again.
    hinted: bool,
}

/// One change of a queue.
pub(super) struct Change<'a> {
    pub(super) now: Moment,
    pub(super) rules: &'a Rules,
    /// To be woken once the queue is unlocked.
    pub(super) woken: Vec<Waker>,
}

impl MemoryHolder {
    /// The mode in which it counts for other claims: a marked one admits nobody.
    fn counted_as(&self) -> Mode {
        if self.marked { Mode::Exclusive } else { self.mode }
    }

    fn info(&self) -> ClaimInfo {
        ClaimInfo {
            token: Some(self.token),
            expires_in: Some(self.end.since(self.claim.runtime.clock().now())),
            evicted: self.evicted,
            detached: self.detached,
            mode: self.mode,
            ..info(&self.claim, self.since)
        }
    }
}

/// As operators see a claim that waits.
fn info(claim: &Claim, since: Moment) -> ClaimInfo {
    let clock = claim.runtime.clock();
    let age = clock.now().since(since);
    let since_micros = clock.wall_micros().saturating_sub(age.as_micros() as u64);
    ClaimInfo { since_micros, age, ..claim.info() }
}

/// The position of a vote in the one order of all claims.
fn order(claim: &Claim) -> u64 {
    claim.vote.as_ref().map_or(0, |vote| vote.order)
}

/// The position of a vote among those that were refused.
fn order_of(claim: &Claim) -> (u64, ClaimId) {
    (order(claim), claim.id)
}

impl MemoryWaiter {
    fn new(claim: &Arc<Claim>, since: Moment) -> MemoryWaiter {
        MemoryWaiter { claim: Arc::clone(claim), since, waker: None }
    }
}

impl MemoryQueue {
    /// Ends the grants whose leases have ended, grants to the claims that may hold now, and tells those that may ask now.
    pub(super) fn settle(&mut self, change: &mut Change) {
        let now = change.now;
        self.holders.retain(|grant| grant.end > now);
        if let [grant] = &mut self.holders[..] {
            change.woken.extend(grant.waker.take());
        }
        let (mut held, limit) = (self.held(), self.limit);
        while let Some(first) = self.waiters.first_entry()
            && held.admit(first.get().claim.want().mode.limited(limit))
        {
            let (number, waiter) = first.remove_entry();
            self.grant(number, &waiter.claim, now, change.rules);
            change.woken.extend(waiter.waker);
        }
        self.voters.retain(|_, voter| voter.until > now);
        for voter in self.voters.values_mut() {
            // A vote that fits is granted whichever were refused before, so one that does not fit blocks no other.
            if held.admit(voter.waiter.claim.want().mode) {
                // The hint stays until the claim asks again, because a claim that was woken may look only later.
                voter.hinted = true;
                change.woken.extend(voter.waiter.waker.take());
            }
        }
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        self.holders.iter().for_each(|grant| held.add(grant.counted_as()));
        held
    }

    fn grant(&mut self, number: u64, claim: &Arc<Claim>, now: Moment, rules: &Rules) -> Token {
        let (token, ttl) = (rules.draw(claim), claim.ttl());
        self.holders.push(MemoryHolder {
            number,
            claim: Arc::clone(claim),
            token,
            mode: claim.want().mode,
            since: now,
            end: now + ttl,
            evicted: false,
            detached: false,
            marked: false,
            waker: None,
        });
        claim.confirm(now, ttl);
        token
    }

    /// A first request. The claim waits or holds as `number` from now on.
    pub(super) fn arrive(&mut self, number: u64, claim: &Arc<Claim>, change: &Change) -> Result<Attempt> {
        if claim.vote.is_some() {
            return Ok(self.vote(number, claim, change));
        }
        let mode = claim.want().mode.limited(self.limit);
        if let Some(limit) = self.limit.filter(|_| !mode.is_possible()) {
            return Err(Error::over_limit(limit).on("memory"));
        }
        // The first claim that waits does not fit, because the queue is settled, so no fair claim may hold before it.
        let is_next = self.waiters.is_empty() || claim.is_unfair();
        if is_next && self.held().fits(mode) {
            return Ok(Attempt::Granted(self.grant(number, claim, change.now, change.rules)));
        }
        if claim.waits {
            self.waiters.insert(number, MemoryWaiter::new(claim, change.now));
        }
        Ok(Attempt::Blocked { next_attempt: None })
    }

    /// A later request of the claim that arrived as `number`.
    pub(super) fn ask(&mut self, number: u64) -> Attempt {
        if self.waiters.contains_key(&number) {
            return Attempt::Blocked { next_attempt: None };
        }
        self.holder(number).map_or(Attempt::Gone, |grant| Attempt::Granted(grant.token))
    }

    /// Votes for the claim: it is granted if it fits beside the holders, whichever claims were refused before.
    fn vote(&mut self, number: u64, claim: &Arc<Claim>, change: &Change) -> Attempt {
        if self.held().fits(claim.want().mode) {
            self.voters.remove(&order_of(claim));
            return Attempt::Granted(self.grant(number, claim, change.now, change.rules));
        }
        if let Some(vote) = &claim.vote {
            let oldest = self.holders.iter().map(|grant| order(&grant.claim)).min();
            vote.rival.store(oldest.unwrap_or(0), Ordering::Relaxed);
        }
        if claim.waits {
            let (until, new) = (change.now + FORGOTTEN, || MemoryWaiter::new(claim, change.now));
            let voter = self.voters.entry(order_of(claim));
            let voter = voter.or_insert_with(|| MemoryVoter { waiter: new(), until, hinted: false });
            (voter.until, voter.hinted) = (until, false);
        }
        Attempt::Blocked { next_attempt: None }
    }

    /// Takes up the detached grant of this id. Returns its number and its token.
    pub(super) fn attach(&mut self, claim: &Arc<Claim>, change: &Change) -> Option<(u64, Token)> {
        let (mode, ttl) = (claim.want().mode, claim.ttl());
        let grant = self.holders.iter_mut().find(|grant| grant.claim.id == claim.id)?;
        if grant.evicted || grant.mode != mode {
            return None;
        }
        grant.end = (change.now + ttl).max(grant.end);
        grant.detached = !claim.renewed;
        // An extension leaves the holder as it is.
        if claim.renewed {
            grant.claim = Arc::clone(claim);
        }
        claim.confirm(change.now, ttl);
        Some((grant.number, grant.token))
    }

    /// Is ready when the claim has what it waits for, or is gone.
    pub(super) fn poll_news(&mut self, number: u64, claim: &Claim, cx: &mut Context<'_>) -> Poll<()> {
        let is_alone = self.holders.len() == 1;
        let marked = |grant: &&mut MemoryHolder| grant.marked && grant.number == number && !is_alone;
        let waker = if let Some(waiter) = self.waiters.get_mut(&number) {
            &mut waiter.waker
        } else if let Some(vote) = self.voters.get_mut(&order_of(claim)).filter(|vote| !vote.hinted) {
            &mut vote.waiter.waker
        } else if let Some(grant) = self.holders.iter_mut().find(marked) {
            &mut grant.waker
        } else {
            return Poll::Ready(());
        };
        *waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Removes the claim.
    pub(super) fn leave(&mut self, number: u64, claim: &Claim) -> Removed {
        if let Some(at) = self.holders.iter().position(|grant| grant.number == number) {
            self.holders.remove(at);
            return Removed::Released;
        }
        let waited = self.waiters.remove(&number).is_some() || self.voters.remove(&order_of(claim)).is_some();
        if waited { Removed::Withdrawn } else { Removed::Nothing }
    }

    /// Detaches the grant. Returns whether there is one.
    pub(super) fn detach(&mut self, number: u64, claim: &Claim, now: Moment) -> bool {
        let Some(grant) = self.holder(number) else { return false };
        // Never shorter than before: somebody may have been told of the longer lease.
        (grant.end, grant.detached, grant.marked) = (grant.end.max(now + claim.ttl()), true, false);
        true
    }

    /// Renews the grant.
    pub(super) fn renew(&mut self, claim: &Arc<Claim>, ttl: Duration, change: &Change) -> Result<(), Loss> {
        let own = self.holders.iter().position(|grant| Arc::ptr_eq(&grant.claim, claim));
        // A detached lease that was taken up several times has one grant, and whoever took it up renews that.
        let same = || self.holders.iter().position(|grant| grant.claim.id == claim.id);
        let at = own.or_else(same);
        match at.map(|at| &mut self.holders[at]) {
            Some(grant) if grant.evicted => Err(Loss::Evicted),
            Some(grant) => {
                grant.end = grant.end.max(change.now + ttl);
                Ok(())
            }
            None => Err(Loss::Expired),
        }
    }

    /// Makes the grant exclusive once it is the only one. Until then it is marked if it is to `join` the queue.
    pub(super) fn upgrade(
        &mut self,
        number: u64,
        claim: &Claim,
        join: bool,
        change: &Change,
    ) -> Result<Attempt> {
        let holders = self.holders.len();
        let is_rival = |grant: &MemoryHolder| grant.marked && grant.number != number;
        let has_rival = self.holders.iter().any(is_rival);
        let Some(grant) = self.holder(number) else { return Ok(Attempt::Gone) };
        if grant.mode == Mode::Exclusive {
            return Ok(Attempt::Granted(grant.token));
        }
        if has_rival {
            return Err(Error::upgrade_conflict(claim.want().name.clone()).on("memory"));
        }
        if holders > 1 {
            grant.marked = join;
            return Ok(Attempt::Blocked { next_attempt: None });
        }
        (grant.mode, grant.marked) = (Mode::Exclusive, false);
        grant.token = change.rules.draw(claim);
        Ok(Attempt::Granted(grant.token))
    }

    /// Makes the grant shared and unmarked, with the token that its holder knows.
    pub(super) fn downgrade(&mut self, number: u64, token: Token) -> Attempt {
        let Some(grant) = self.holder(number) else { return Attempt::Gone };
        (grant.mode, grant.marked, grant.token) = (Mode::Shared, false, token);
        Attempt::Granted(token)
    }

    /// Makes `to` the token of the grant of a vote.
    pub(super) fn raise(
        &mut self,
        number: u64,
        claim: &Claim,
        to: Token,
        change: &Change,
    ) -> Result<Attempt> {
        let regains_alone = self.holders.len() == 1 && claim.vote.as_ref().is_some_and(|vote| vote.regains);
        if let Some(grant) = self.holder(number)
            && (grant.token == to || change.rules.take_token(to).is_some() || regains_alone)
        {
            grant.token = to;
            return Ok(Attempt::Granted(to));
        }
        let message = format!("token {to} cannot be this grant's any more");
        Err(Error::new(ErrorKind::Mismatch, message).of(claim.want().name.clone()).on("memory"))
    }

    /// Evicts the holder with this token, and ends its grant if that is to be `now`. Its validity is to be ended by the caller once the
    /// queue is unlocked, because that wakes its watchers.
    pub(super) fn evict(&mut self, token: Token, now: bool) -> Option<Arc<Validity>> {
        let at = self.holders.iter().position(|grant| grant.token == token)?;
        let grant = &mut self.holders[at];
        (grant.evicted, grant.marked) = (true, false);
        let validity = Arc::clone(&grant.claim.validity);
        if now {
            self.holders.remove(at);
        }
        Some(validity)
    }

    /// Removes the waiters that ask for more permits than the limit. Each finds that it is gone, and its next claim is refused.
    pub(super) fn remove_impossible(&mut self, change: &mut Change) {
        let limit = self.limit;
        self.waiters.retain(|_, waiter| {
            let is_possible = waiter.claim.want().mode.limited(limit).is_possible();
            if !is_possible {
                change.woken.extend(waiter.waker.take());
            }
            is_possible
        });
    }

    /// Returns the grant of the claim that arrived as `number`, unless it was evicted.
    fn holder(&mut self, number: u64) -> Option<&mut MemoryHolder> {
        self.holders.iter_mut().find(|grant| grant.number == number && !grant.evicted)
    }

    /// Returns the alarm to set, if a claim waits for holders to leave and no alarm is set that is early enough.
    pub(super) fn next_alarm(&mut self, clock: &Clock) -> Option<(Moment, Clock)> {
        let is_marked = || self.holders.iter().any(|grant| grant.marked);
        if self.waiters.is_empty() && self.voters.is_empty() && !is_marked() {
            return None;
        }
        let soonest = self.holders.iter().map(|grant| grant.end).min()?;
        if soonest == Moment::NEVER || self.alarm.is_some_and(|at| at <= soonest) {
            return None;
        }
        // If no clock runs any more, the next claim ends the leases itself.
        let clock = self.clock().or_else(|| (!clock.is_stopped()).then(|| clock.clone()))?;
        self.alarm = Some(soonest);
        Some((soonest, clock))
    }

    /// Returns the clock of a claim whose client is not closed: an alarm on a clock that has stopped goes off at once.
    pub(super) fn clock(&self) -> Option<Clock> {
        let refused = self.voters.values().map(|vote| &vote.waiter.claim);
        let waiters = self.waiters.values().map(|waiter| &waiter.claim);
        let claims = refused.chain(waiters).chain(self.holders.iter().map(|grant| &grant.claim));
        claims.map(|claim| claim.runtime.clock()).find(|clock| !clock.is_stopped()).cloned()
    }

    /// Returns a clock that tells the time. It may be the one of a closed client, because a grant outlives its client.
    pub(super) fn clock_to_read(&self) -> Option<Clock> {
        self.clock().or_else(|| self.holders.first().map(|grant| grant.claim.runtime.clock().clone()))
    }

    /// Returns whether nothing is to be kept of the resource. While an alarm is set the queue stays, so that a name which is used over and
    /// over has no more than one.
    pub(super) fn is_idle(&self) -> bool {
        let has_claims = !(self.holders.is_empty() && self.waiters.is_empty() && self.voters.is_empty());
        !has_claims && self.limit.is_none() && self.alarm.is_none()
    }

    /// Returns whether the queue is idle once it is settled, by the clocks of its claims.
    pub(super) fn is_over(&self) -> bool {
        let has_passed = |at: Moment, claim: &Claim| at <= claim.runtime.clock().now();
        self.limit.is_none()
            && self.alarm.is_none()
            && self.waiters.is_empty()
            && self.holders.iter().all(|grant| has_passed(grant.end, &grant.claim))
            && self.voters.values().all(|voter| has_passed(voter.until, &voter.waiter.claim))
    }

    /// Returns everybody as operators see them, holders first, each in the order of arrival.
    pub(super) fn claims(&self) -> Vec<ClaimInfo> {
        let waiters = self.waiters.values().map(|waiter| info(&waiter.claim, waiter.since));
        let asks = |vote: &&MemoryVoter| vote.until > vote.waiter.claim.runtime.clock().now();
        let refused =
            self.voters.values().filter(asks).map(|vote| info(&vote.waiter.claim, vote.waiter.since));
        let all = self.holders.iter().map(MemoryHolder::info).chain(waiters).chain(refused);
        // A lease that has run out is ended by the next claim that comes; until then it must not look held.
        all.filter(|info| info.expires_in != Some(Duration::ZERO)).collect()
    }
}
