//! The votes of a node in a quorum.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::chain::NodeState;
use super::queue::Queue;
use super::rules::Rules;
use super::voters::order;
use super::wakers::Wakers;
use crate::backend::Attempt;
use crate::backend::claim::Claim;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;

impl Queue {
    /// Votes for the claim: it is granted if it fits beside the holders, whichever claims were refused before.
    pub(super) fn vote(
        &mut self,
        claim: &Arc<Claim>,
        rules: &Rules,
        wakers: &mut Wakers,
    ) -> (Option<usize>, Attempt) {
        let now = claim.runtime.clock().now();
        self.settle(now, rules, wakers);
        if self.held.fits(claim.want().mode) {
            self.voters.forget(claim.id);
            let token = self.draw(claim, rules);
            let key = self.hold(claim, token, now);
            return (Some(key), Attempt::Granted(token));
        }
        let oldest = self.keys(self.holders).map(|key| order(&self.nodes[key].claim)).min();
        if let Some(vote) = &claim.vote {
            vote.rival.store(oldest.unwrap_or(0), Ordering::Relaxed);
        }
        if claim.waits {
            self.voters.refuse(claim, now);
        }
        (None, Attempt::Blocked { again: None })
    }

    /// It asks no more; if it was just told to, others are. Says whether it was there.
    pub(super) fn take_back_vote(&mut self, claim: &Claim, rules: &Rules, wakers: &mut Wakers) -> bool {
        let known = self.voters.forget(claim.id);
        self.settle(claim.runtime.clock().now(), rules, wakers);
        known
    }

    /// Makes `to` the token of the grant in this node.
    pub(super) fn raise(&mut self, key: usize, claim: &Claim, to: Token, rules: &Rules) -> Result<()> {
        let now = claim.runtime.clock().now();
        let alone = self.held.holders() == 1 && claim.vote.as_ref().is_some_and(|vote| vote.again);
        if let Some(node) = self.node_mut(key, claim.id)
            && let NodeState::Holding { token, end, evicted: false, .. } = &mut node.state
            && *end > now
            && (*token == to || rules.take_token(to).is_some() || alone)
        {
            *token = to;
            return Ok(());
        }
        let message = format!("token {to} cannot be this grant's any more");
        Err(Error::new(ErrorKind::Mismatch, message).of(claim.want().name.clone()).on("memory"))
    }
}
