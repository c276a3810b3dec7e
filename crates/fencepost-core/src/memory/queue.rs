//! The queue of one resource: its holders and waiters, every step O(1) whatever their number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::bug::{Planted, planted};
use super::chain::{Chain, NONE, Node, NodeState, Upgrading, push, unlink};
use super::rules::Rules;
use super::voters::Voters;
use super::wakers::Wakers;
use crate::backend::admission::{Held, Mode};
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::backend::{Attempt, Removed};
use crate::operator::holder::ClaimInfo;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{Loss, Validity};

/// Holders and waiters of one resource, each a chain through one slab.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) nodes: Slab<Node>,
    pub(super) held: Held,
    pub(super) holders: Chain,
    pub(super) waiters: Chain,
    waiting: u32,
    /// No lease ends before this moment. Renewals move ends back without moving this.
    soonest: Moment,
    /// For when the alarm is set, if it is.
    alarm: Option<Moment>,
    /// The claims that are told when the resource may be free.
    pub(super) voters: Voters,
    /// The reader that waits to be the only holder. It counts as an exclusive holder beside the others.
    pub(super) upgrading: Option<Upgrading>,
    /// The stored limit of permits.
    pub(super) limit: Option<u32>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.voters.is_empty()
    }

    /// A first attempt: the node it was given, or `None` with nothing left behind.
    pub(super) fn arrive(
        &mut self,
        claim: &Arc<Claim>,
        rules: &Rules,
        wakers: &mut Wakers,
    ) -> (Option<usize>, Attempt) {
        let clock = claim.runtime.clock();
        let now = clock.now();
        let mode = claim.want().mode;
        self.settle(now, rules, wakers);
        if planted!(rules.planted, SharedId) {
            let same = |key: &usize| self.nodes[*key].id.as_u128() % 8 == claim.id.as_u128() % 8;
            if let Some(key) = self.keys(self.holders).find(same)
                && let NodeState::Holding { token, .. } = self.nodes[key].state
            {
                claim.confirm(now, claim.ttl());
                return (Some(key), Attempt::Granted(token));
            }
        }
        let overtakes = mode == Mode::Shared && planted!(rules.planted, StarvingWriter);
        if (self.waiting == 0 || overtakes || claim.is_unfair()) && self.fits(mode) {
            let token = self.draw(claim, rules);
            let key = self.hold(claim, token, now);
            return (Some(key), Attempt::Granted(token));
        }
        if !claim.waits {
            return (None, Attempt::Blocked { again: None });
        }
        let state = NodeState::Waiting { waker: None };
        let key = self.insert(claim, state, now);
        push(&mut self.nodes, &mut self.waiters, key);
        self.waiting += 1;
        (Some(key), Attempt::Blocked { again: None })
    }

    /// A later attempt of the claim that was given node `key`.
    pub(super) fn ask(&mut self, key: usize, claim: &Claim, rules: &Rules, wakers: &mut Wakers) -> Attempt {
        self.settle(claim.runtime.clock().now(), rules, wakers);
        match self.node(key, claim.id).map(|node| &node.state) {
            None | Some(NodeState::Holding { evicted: true, .. }) => Attempt::Gone,
            Some(NodeState::Holding { token, .. }) => Attempt::Granted(*token),
            Some(NodeState::Waiting { .. }) if planted!(rules.planted, NoRecheck) => {
                let token = rules.next_token();
                self.promote(key, token, claim.runtime.clock().now());
                Attempt::Granted(token)
            }
            Some(NodeState::Waiting { .. }) => Attempt::Blocked { again: None },
        }
    }

    /// Takes up the detached grant of this id.
    pub(super) fn attach(
        &mut self,
        claim: &Arc<Claim>,
        rules: &Rules,
        wakers: &mut Wakers,
    ) -> Option<(usize, Token)> {
        let now = claim.runtime.clock().now();
        self.settle(now, rules, wakers);
        let key = self.keys(self.holders).find(|&key| self.nodes[key].id == claim.id)?;
        let node = &mut self.nodes[key];
        if node.mode != claim.want().mode {
            return None;
        }
        let NodeState::Holding { token, end, evicted: false, detached } = &mut node.state else {
            return None;
        };
        *end = (now + claim.ttl()).max(*end);
        *detached = !claim.renewed;
        let token = *token;
        self.soonest = self.soonest.min(now + claim.ttl());
        claim.note.store(key as u64, Ordering::Relaxed);
        // An extension leaves the holder as it is.
        if claim.renewed {
            node.claim = Arc::clone(claim);
        }
        claim.confirm(now, claim.ttl());
        Some((key, token))
    }

    /// Notes whom to wake when the claim has won. `false`: it has, or is gone.
    pub(super) fn waits(&mut self, key: usize, id: ClaimId, by: &Waker) -> bool {
        match self.node_mut(key, id).map(|node| &mut node.state) {
            Some(NodeState::Waiting { waker: Some(waker) }) => waker.clone_from(by),
            Some(NodeState::Waiting { waker }) => *waker = Some(by.clone()),
            Some(NodeState::Holding { .. }) => return self.waits_to_be_alone(key, by),
            // It is gone, and its place may be another claim's.
            None => return false,
        }
        true
    }

    /// Takes the claim out, and lets those go who can now.
    pub(super) fn leave(&mut self, key: usize, claim: &Claim, rules: &Rules, wakers: &mut Wakers) -> Removed {
        if planted!(rules.planted, ReleaseByName) && self.held.holders() > 0 {
            self.remove(self.holders.head);
            self.settle(claim.runtime.clock().now(), rules, wakers);
            return Removed::Released;
        }
        let left = match self.node(key, claim.id).map(|node| &node.state) {
            None => return Removed::Nothing,
            Some(NodeState::Waiting { .. }) => {
                if planted!(rules.planted, OrphanedWaiter) {
                    return Removed::Withdrawn;
                }
                Removed::Withdrawn
            }
            Some(NodeState::Holding { .. }) => Removed::Released,
        };
        self.remove(key);
        if self.is_awaited() {
            if planted!(rules.planted, LostWakeup) && rules.next_token().get().is_multiple_of(64) {
                return left;
            }
            self.settle(claim.runtime.clock().now(), rules, wakers);
        }
        left
    }

    /// Cuts the grant loose.
    pub(super) fn detach(&mut self, key: usize, claim: &Claim, now: Moment) -> Result<(), Loss> {
        self.unmark(key);
        let node = self.node_mut(key, claim.id).ok_or(Loss::Deleted)?;
        match &mut node.state {
            NodeState::Holding { evicted: true, .. } => Err(Loss::Evicted),
            NodeState::Holding { end, detached, .. } if *end > now => {
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
        let Some(node) = self.node_mut(key, claim.id) else {
            if planted!(bug, LateRenewal) {
                return Ok(());
            }
            return Err(Loss::Expired);
        };
        match &mut node.state {
            NodeState::Holding { evicted: true, .. } => Err(Loss::Evicted),
            NodeState::Holding { end, .. } if *end > now => {
                *end = (*end).max(now + ttl);
                Ok(())
            }
            NodeState::Holding { .. } => Err(Loss::Expired),
            NodeState::Waiting { .. } => Ok(()),
        }
    }

    /// Marks the grant with this token as evicted, or ends it at once. Its validity is to be ended by the caller, outside of the
    /// queue's lock: that wakes its watchers.
    pub(super) fn evict(&mut self, token: Token, now: bool) -> Option<Arc<Validity>> {
        let of_token =
            |node: &Node| matches!(node.state, NodeState::Holding { token: has, .. } if has == token);
        let key = self.keys(self.holders).find(|&key| of_token(&self.nodes[key]))?;
        self.unmark(key);
        let node = &mut self.nodes[key];
        if let NodeState::Holding { evicted, .. } = &mut node.state {
            *evicted = true;
        }
        let validity = Arc::clone(&node.claim.validity);
        if now {
            self.remove(key);
        }
        Some(validity)
    }

    /// Purges holders whose lease has ended, then grants to those waiters who may go.
    pub(super) fn settle(&mut self, now: Moment, rules: &Rules, wakers: &mut Wakers) {
        let now = if planted!(rules.planted, WallClockDeadline) { self.wall_moment(now) } else { now };
        if now >= self.soonest && self.held.holders() > 0 {
            let ended: Vec<_> = self.keys(self.holders).filter(|&key| self.nodes[key].end() <= now).collect();
            ended.into_iter().for_each(|key| self.remove(key));
            self.soonest =
                self.keys(self.holders).map(|key| self.nodes[key].end()).min().unwrap_or(Moment::NEVER);
        }
        self.wake_upgrade(wakers);
        while self.waiters.head != NONE {
            let key = self.waiters.head;
            let node = &self.nodes[key];
            if !self.fits(node.claim.want().mode) {
                break;
            }
            let token = self.draw(&node.claim, rules);
            wakers.push(self.promote(key, token, now));
        }
        if !self.voters.is_empty() {
            self.voters.hint(now, self.held, wakers);
        }
    }

    /// The alarm to set, if somebody waits and none is set that is early enough.
    pub(super) fn next_alarm(&mut self, clock: &Clock) -> Option<(Moment, Clock)> {
        if !self.is_awaited()
            || self.soonest == Moment::NEVER
            // A lease that was left ends for nobody, and those who were refused may still be here.
            || self.held.is_free()
            || self.alarm.is_some_and(|at| at <= self.soonest)
        {
            return None;
        }
        let given = || (!clock.is_stopped()).then(|| clock.clone());
        // No clock that runs is left: the next claim checks the leases itself.
        let clock = self.clock().or_else(given)?;
        self.alarm = Some(self.soonest);
        Some((self.soonest, clock))
    }

    /// Does a claim wait for holders to leave?
    fn is_awaited(&self) -> bool {
        self.waiting > 0 || !self.voters.is_empty() || self.upgrading.is_some()
    }

    pub(super) fn alarm_fired(&mut self) {
        self.alarm = None;
    }

    /// The clock of the first who stands here and whose client is not closed: an alarm on a clock that has stopped goes off at once.
    pub(super) fn clock(&self) -> Option<Clock> {
        let state = self.keys(self.waiters).chain(self.keys(self.holders));
        let state = state.map(|key| &self.nodes[key].claim);
        let mut clocks = self.voters.claims().chain(state).map(|claim| claim.runtime.clock());
        clocks.find(|clock| !clock.is_stopped()).cloned()
    }

    /// Everybody, holders first, each in order of arrival.
    pub(super) fn claims(&self) -> Vec<ClaimInfo> {
        let all = self.keys(self.holders).chain(self.keys(self.waiters)).map(|key| self.shown(key));
        let all = all.chain(self.voters.infos());
        // A lease that has run out is purged by the next claim that comes; until then it must not look held.
        all.filter(|info| info.expires_in != Some(Duration::ZERO)).collect()
    }

    /// The token of a grant that is being made.
    pub(super) fn draw(&self, claim: &Claim, rules: &Rules) -> Token {
        if planted!(rules.planted, TokenBeforeGrant) {
            return Token::new(claim.note.load(Ordering::Relaxed));
        }
        if planted!(rules.planted, TokenReuse) {
            return Token::new(u64::from(self.held.holders()) + 1);
        }
        let proposal = claim.vote.as_ref().map(|vote| Token::new(vote.proposal.load(Ordering::Relaxed)));
        proposal.and_then(|token| rules.take_token(token)).unwrap_or_else(|| rules.token_for(claim))
    }

    pub(super) fn hold(&mut self, claim: &Arc<Claim>, token: Token, now: Moment) -> usize {
        let end = now + claim.ttl();
        let key = self.insert(claim, NodeState::Holding { token, end, evicted: false, detached: false }, now);
        self.count_in(key, claim, now, end);
        key
    }

    /// Makes a waiter a holder.
    fn promote(&mut self, key: usize, token: Token, now: Moment) -> Option<Waker> {
        unlink(&mut self.nodes, &mut self.waiters, key);
        self.waiting -= 1;
        let node = &mut self.nodes[key];
        let claim = Arc::clone(&node.claim);
        let end = now + claim.ttl();
        let state = NodeState::Holding { token, end, evicted: false, detached: false };
        let before = std::mem::replace(&mut node.state, state);
        node.since = now;
        self.count_in(key, &claim, now, end);
        match before {
            NodeState::Waiting { waker } => waker,
            NodeState::Holding { .. } => None,
        }
    }

    fn count_in(&mut self, key: usize, claim: &Claim, now: Moment, end: Moment) {
        self.soonest = if self.held.is_free() { end } else { self.soonest.min(end) };
        push(&mut self.nodes, &mut self.holders, key);
        self.held.add(self.nodes[key].mode);
        claim.note.store(key as u64, Ordering::Relaxed);
        claim.confirm(now, claim.ttl());
    }

    fn insert(&mut self, claim: &Arc<Claim>, state: NodeState, since: Moment) -> usize {
        self.nodes.insert(Node {
            id: claim.id,
            claim: Arc::clone(claim),
            mode: claim.want().mode,
            state,
            before: NONE,
            after: NONE,
            since,
        })
    }

    pub(super) fn remove(&mut self, key: usize) {
        let holds = matches!(self.nodes[key].state, NodeState::Holding { .. });
        if holds {
            self.unmark(key);
            self.held.remove(self.nodes[key].mode);
            unlink(&mut self.nodes, &mut self.holders, key);
        } else {
            self.waiting -= 1;
            unlink(&mut self.nodes, &mut self.waiters, key);
        }
        self.nodes.remove(key);
    }

    pub(super) fn node(&self, key: usize, id: ClaimId) -> Option<&Node> {
        self.nodes.get(key).filter(|node| node.id == id)
    }

    pub(super) fn node_mut(&mut self, key: usize, id: ClaimId) -> Option<&mut Node> {
        self.nodes.get_mut(key).filter(|node| node.id == id)
    }

    pub(super) fn keys(&self, chain: Chain) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors((chain.head != NONE).then_some(chain.head), |&key| {
            let after = self.nodes[key].after;
            (after != NONE).then_some(after)
        })
    }

    /// Returns the time as the planted bug reads it.
    fn wall_moment(&self, now: Moment) -> Moment {
        const START: u64 = 1_700_000_000_000_000 - 1_000_000_000;
        self.clock()
            // Only steps forward: a step backward would set each alarm into the past.
            .map_or(now, |clock| {
                Moment::from_nanos(clock.wall_micros().saturating_sub(START) * 1_000).max(now)
            })
    }
}
