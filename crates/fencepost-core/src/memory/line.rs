//! The line of one resource: its holders and waiters, every step O(1) whatever their number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::bug::{Planted, planted};
use super::place::{Chain, NONE, Place, Standing, push, unlink};
use super::vote::Voters;
use super::wakers::Wakers;
use super::{Memory, lease_end};
use crate::backend::admission::{Held, Mode};
use crate::backend::claim::{Claim, ClaimId};
use crate::backend::{Attempt, Removed};
use crate::operator::holder::ClaimInfo;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{Loss, Validity};

/// Holders and waiters of one resource, each a chain through one slab.
#[derive(Default)]
pub(super) struct Line {
    pub(super) places: Slab<Place>,
    pub(super) held: Held,
    pub(super) holders: Chain,
    waiters: Chain,
    waiting: u32,
    /// No lease ends before this moment. Renewals move ends back without moving this.
    soonest: Moment,
    /// For when the alarm is set, if it is.
    alarm: Option<Moment>,
    /// Who is told when the resource may be free.
    pub(super) voters: Voters,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.voters.is_empty()
    }

    /// A first attempt: the place it was given, or `None` with nothing left behind.
    pub(super) fn arrive(
        &mut self,
        claim: &Arc<Claim>,
        memory: &Memory,
        wakers: &mut Wakers,
    ) -> (Option<usize>, Attempt) {
        let clock = claim.runtime.clock();
        let now = clock.now();
        let mode = claim.want().mode;
        self.settle(now, memory, wakers);
        if planted!(memory.planted, SharedId) {
            let same = |key: &usize| self.places[*key].id.as_u128() % 8 == claim.id.as_u128() % 8;
            if let Some(key) = self.keys(self.holders).find(same)
                && let Standing::Holding { token, .. } = self.places[key].standing
            {
                claim.confirm(now, claim.ttl());
                return (Some(key), Attempt::Granted(token));
            }
        }
        let overtakes = mode == Mode::Shared && planted!(memory.planted, StarvingWriter);
        let mine = memory.kind == super::Kind::Processes && self.is_held_by_client(claim);
        if mine || ((self.waiting == 0 || overtakes) && self.held.fits(mode)) {
            let token = self.draw(claim, memory);
            let key = self.hold(claim, token, now, memory);
            return (Some(key), Attempt::Granted(token));
        }
        let ahead = self.held.holders() + self.waiting;
        if !claim.join {
            return (None, Attempt::Blocked { again: None, ahead: Some(ahead) });
        }
        let standing = Standing::Waiting { waker: None };
        let key = self.insert(claim, standing, now);
        push(&mut self.places, &mut self.waiters, key);
        self.waiting += 1;
        (Some(key), Attempt::Blocked { again: None, ahead: Some(ahead) })
    }

    /// A later attempt of the claim that was given place `key`.
    pub(super) fn ask(&mut self, key: usize, claim: &Claim, memory: &Memory, wakers: &mut Wakers) -> Attempt {
        self.settle(claim.runtime.clock().now(), memory, wakers);
        match self.place(key, claim.id).map(|place| &place.standing) {
            None | Some(Standing::Holding { evicted: true, .. }) => Attempt::Gone,
            Some(Standing::Holding { token, .. }) => Attempt::Granted(*token),
            Some(Standing::Waiting { .. }) if planted!(memory.planted, NoRecheck) => {
                let token = memory.next_token();
                self.promote(key, token, claim.runtime.clock().now(), memory);
                Attempt::Granted(token)
            }
            Some(Standing::Waiting { .. }) => Attempt::Blocked { again: None, ahead: None },
        }
    }

    /// Takes up the detached grant of this id.
    pub(super) fn attach(
        &mut self,
        claim: &Arc<Claim>,
        memory: &Memory,
        wakers: &mut Wakers,
    ) -> Option<(usize, Token)> {
        let now = claim.runtime.clock().now();
        self.settle(now, memory, wakers);
        let key = self.keys(self.holders).find(|&key| self.places[key].id == claim.id)?;
        let place = &mut self.places[key];
        if place.claim.want().mode != claim.want().mode {
            return None;
        }
        let Standing::Holding { token, end, evicted: false, detached } = &mut place.standing else {
            return None;
        };
        *end = lease_end(memory.kind, claim, now).max(*end);
        *detached = !claim.renewed;
        let token = *token;
        self.soonest = self.soonest.min(now + claim.ttl());
        claim.note.store(key as u64, Ordering::Relaxed);
        place.claim = Arc::clone(claim);
        claim.confirm(now, claim.ttl());
        Some((key, token))
    }

    /// Notes whom to wake when the claim has won. `false`: it has, or is gone.
    pub(super) fn waits(&mut self, key: usize, id: ClaimId, by: &Waker) -> bool {
        match self.place_mut(key, id).map(|place| &mut place.standing) {
            Some(Standing::Waiting { waker: Some(waker) }) => waker.clone_from(by),
            Some(Standing::Waiting { waker }) => *waker = Some(by.clone()),
            _ => return false,
        }
        true
    }

    /// Takes the claim out, and lets those go who can now.
    pub(super) fn leave(
        &mut self,
        key: usize,
        claim: &Claim,
        memory: &Memory,
        wakers: &mut Wakers,
    ) -> Removed {
        if planted!(memory.planted, ReleaseByName) && self.held.holders() > 0 {
            self.remove(self.holders.head);
            self.settle(claim.runtime.clock().now(), memory, wakers);
            return Removed::Released;
        }
        let left = match self.place(key, claim.id).map(|place| &place.standing) {
            None => return Removed::Nothing,
            Some(Standing::Waiting { .. }) => {
                if planted!(memory.planted, OrphanedWaiter) {
                    return Removed::Withdrawn;
                }
                Removed::Withdrawn
            }
            Some(Standing::Holding { .. }) => Removed::Released,
        };
        self.remove(key);
        if self.waiting > 0 || !self.voters.is_empty() {
            if planted!(memory.planted, LostWakeup) && memory.next_token().get().is_multiple_of(64) {
                return left;
            }
            self.settle(claim.runtime.clock().now(), memory, wakers);
        }
        left
    }

    /// Cuts the grant loose.
    pub(super) fn detach(&mut self, key: usize, claim: &Claim, now: Moment) -> Result<(), Loss> {
        let place = self.place_mut(key, claim.id).ok_or(Loss::Deleted)?;
        match &mut place.standing {
            Standing::Holding { evicted: true, .. } => Err(Loss::Evicted),
            Standing::Holding { end, detached, .. } if *end > now => {
                *end = now + claim.ttl();
                *detached = true;
                let end = *end;
                self.soonest = self.soonest.min(end);
                Ok(())
            }
            _ => Err(Loss::Expired),
        }
    }

    /// Renews the grant of this claim.
    pub(super) fn keep(
        &mut self,
        claim: &Claim,
        now: Moment,
        ttl: Duration,
        bug: Planted,
    ) -> Result<(), Loss> {
        let key = claim.note.load(Ordering::Relaxed) as usize;
        let Some(place) = self.place_mut(key, claim.id) else {
            if planted!(bug, LateRenewal) {
                return Ok(());
            }
            return Err(Loss::Expired);
        };
        match &mut place.standing {
            Standing::Holding { evicted: true, .. } => Err(Loss::Evicted),
            Standing::Holding { end, .. } if *end > now => {
                *end = (*end).max(now + ttl);
                Ok(())
            }
            Standing::Holding { .. } => Err(Loss::Expired),
            Standing::Waiting { .. } => Ok(()),
        }
    }

    /// Marks the grant with this token as evicted, or ends it at once. Its validity is to be ended by the caller, outside of the
    /// line's lock: that wakes whoever watches it.
    pub(super) fn evict(&mut self, token: Token, now: bool) -> Option<Arc<Validity>> {
        let of_token =
            |place: &Place| matches!(place.standing, Standing::Holding { token: has, .. } if has == token);
        let key = self.keys(self.holders).find(|&key| of_token(&self.places[key]))?;
        let place = &mut self.places[key];
        if let Standing::Holding { evicted, .. } = &mut place.standing {
            *evicted = true;
        }
        let validity = Arc::clone(&place.claim.validity);
        if now {
            self.remove(key);
        }
        Some(validity)
    }

    /// Purges holders whose lease has ended, then grants to those waiters who may go.
    pub(super) fn settle(&mut self, now: Moment, memory: &Memory, wakers: &mut Wakers) {
        let now = if planted!(memory.planted, WallClockDeadline) { self.wall_moment(now) } else { now };
        if now >= self.soonest && self.held.holders() > 0 {
            let ended: Vec<_> =
                self.keys(self.holders).filter(|&key| self.places[key].end() <= now).collect();
            ended.into_iter().for_each(|key| self.remove(key));
            self.soonest =
                self.keys(self.holders).map(|key| self.places[key].end()).min().unwrap_or(Moment::NEVER);
        }
        while self.waiters.head != NONE {
            let key = self.waiters.head;
            let place = &self.places[key];
            if !self.held.fits(place.claim.want().mode) {
                break;
            }
            let token = self.draw(&place.claim, memory);
            wakers.push(self.promote(key, token, now, memory));
        }
        if !self.voters.is_empty() {
            self.voters.hint(now, self.held, wakers);
        }
    }

    /// The alarm to set, if somebody waits and none is set that is early enough.
    pub(super) fn next_alarm(&mut self, clock: &Clock) -> Option<(Moment, Clock)> {
        if (self.waiting == 0 && self.voters.is_empty())
            || self.soonest == Moment::NEVER
            // A lease that was left ends for nobody, and those who were refused may still be here.
            || self.held.is_free()
            || self.alarm.is_some_and(|at| at <= self.soonest)
        {
            return None;
        }
        let given = || (!clock.is_stopped()).then(|| clock.clone());
        // Nobody is left whose clock runs: whoever comes next looks by himself.
        let clock = self.clock().or_else(given)?;
        self.alarm = Some(self.soonest);
        Some((self.soonest, clock))
    }

    pub(super) fn alarm_fired(&mut self) {
        self.alarm = None;
    }

    /// The clock of the first who stands here and whose client is not closed: an alarm on a clock that has stopped goes off at once.
    pub(super) fn clock(&self) -> Option<Clock> {
        let standing = self.keys(self.waiters).chain(self.keys(self.holders));
        let standing = standing.map(|key| &self.places[key].claim);
        let mut clocks = self.voters.claims().chain(standing).map(|claim| claim.runtime.clock());
        clocks.find(|clock| !clock.is_stopped()).cloned()
    }

    /// Everybody, holders first, each in order of arrival.
    pub(super) fn claims(&self) -> Vec<ClaimInfo> {
        let all = self.keys(self.holders).chain(self.keys(self.waiters)).map(|key| self.places[key].info());
        let all = all.chain(self.voters.infos());
        // A lease that has run out is purged by the next claim that comes; until then it must not look held.
        all.filter(|info| info.expires_in != Some(Duration::ZERO)).collect()
    }

    /// The token of a grant that is being made.
    pub(super) fn draw(&self, claim: &Claim, memory: &Memory) -> Token {
        if planted!(memory.planted, TokenBeforeGrant) {
            return Token::new(claim.note.load(Ordering::Relaxed));
        }
        if planted!(memory.planted, TokenReuse) {
            return Token::new(u64::from(self.held.holders()) + 1);
        }
        let proposal = claim.vote.as_ref().map(|vote| Token::new(vote.proposal.load(Ordering::Relaxed)));
        proposal.and_then(|token| memory.take_token(token)).unwrap_or_else(|| memory.next_token())
    }

    pub(super) fn hold(&mut self, claim: &Arc<Claim>, token: Token, now: Moment, memory: &Memory) -> usize {
        let end = lease_end(memory.kind, claim, now);
        let key = self.insert(claim, Standing::Holding { token, end, evicted: false, detached: false }, now);
        self.count_in(key, claim, now, end);
        key
    }

    /// Makes a waiter a holder.
    fn promote(&mut self, key: usize, token: Token, now: Moment, memory: &Memory) -> Option<Waker> {
        unlink(&mut self.places, &mut self.waiters, key);
        self.waiting -= 1;
        let place = &mut self.places[key];
        let claim = Arc::clone(&place.claim);
        let end = lease_end(memory.kind, &claim, now);
        let standing = Standing::Holding { token, end, evicted: false, detached: false };
        let before = std::mem::replace(&mut place.standing, standing);
        place.since = now;
        self.count_in(key, &claim, now, end);
        match before {
            Standing::Waiting { waker } => waker,
            Standing::Holding { .. } => None,
        }
    }

    fn count_in(&mut self, key: usize, claim: &Claim, now: Moment, end: Moment) {
        self.soonest = if self.held.is_free() { end } else { self.soonest.min(end) };
        push(&mut self.places, &mut self.holders, key);
        self.held.add(claim.want().mode);
        claim.note.store(key as u64, Ordering::Relaxed);
        claim.confirm(now, claim.ttl());
    }

    fn insert(&mut self, claim: &Arc<Claim>, standing: Standing, since: Moment) -> usize {
        self.places.insert(Place {
            id: claim.id,
            claim: Arc::clone(claim),
            standing,
            before: NONE,
            after: NONE,
            since,
        })
    }

    fn remove(&mut self, key: usize) {
        let holds = matches!(self.places[key].standing, Standing::Holding { .. });
        if holds {
            self.held.remove(self.places[key].claim.want().mode);
            unlink(&mut self.places, &mut self.holders, key);
        } else {
            self.waiting -= 1;
            unlink(&mut self.places, &mut self.waiters, key);
        }
        self.places.remove(key);
    }

    fn is_held_by_client(&self, claim: &Claim) -> bool {
        self.keys(self.holders).any(|key| self.places[key].claim.runtime.client() == claim.runtime.client())
    }

    pub(super) fn place(&self, key: usize, id: ClaimId) -> Option<&Place> {
        self.places.get(key).filter(|place| place.id == id)
    }

    pub(super) fn place_mut(&mut self, key: usize, id: ClaimId) -> Option<&mut Place> {
        self.places.get_mut(key).filter(|place| place.id == id)
    }

    pub(super) fn keys(&self, chain: Chain) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors((chain.head != NONE).then_some(chain.head), |&key| {
            let after = self.places[key].after;
            (after != NONE).then_some(after)
        })
    }

    /// What the planted bug takes for the time.
    fn wall_moment(&self, now: Moment) -> Moment {
        const START: u64 = 1_700_000_000_000_000 - 1_000_000_000;
        self.clock()
            // Steps forward alone: backward ones would set alarms into the past for ever.
            .map_or(now, |clock| {
                Moment::from_nanos(clock.wall_micros().saturating_sub(START) * 1_000).max(now)
            })
    }
}
