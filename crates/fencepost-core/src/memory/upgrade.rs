//! Shared holders that become exclusive, and exclusive ones that become shared.

use std::task::Waker;

use super::bug::planted;
use super::chain::{NodeState, Upgrading};
use super::queue::Queue;
use super::rules::Rules;
use super::wakers::Wakers;
use crate::backend::Attempt;
use crate::backend::admission::Mode;
use crate::backend::claim::Claim;
use crate::error::{Error, Result};
use crate::operator::holder::ClaimInfo;
use crate::token::Token;
use crate::validity::Loss;

impl Queue {
    /// Makes the holder at `key` exclusive once it is alone, and marks it until then.
    pub(super) fn upgrade(
        &mut self,
        key: usize,
        claim: &Claim,
        join: bool,
        rules: &Rules,
        wakers: &mut Wakers,
    ) -> Result<Attempt> {
        self.settle(claim.runtime.clock().now(), rules, wakers);
        let Some((token, mode)) = self.held_as(key, claim) else { return Ok(Attempt::Gone) };
        let is_marked = self.is_marked(key);
        if mode == Mode::Exclusive && !is_marked {
            return Ok(Attempt::Granted(token));
        }
        if self.upgrading.is_some() && !is_marked && !planted!(rules.planted, TwoUpgrades) {
            return Err(Error::upgrade_conflict(claim.want().name.clone()).on("memory"));
        }
        let others = self.held.holders() - 1;
        if others > 0 && !planted!(rules.planted, UpgradeBesideReaders) {
            if !join {
                self.unmark(key);
            } else if !is_marked {
                if !planted!(rules.planted, UpgradeOvertaken) {
                    self.turn(key, Mode::Exclusive);
                }
                self.upgrading = Some(Upgrading { key, waker: None });
            }
            return Ok(Attempt::Blocked { again: None });
        }
        self.upgrading = None;
        self.turn(key, Mode::Exclusive);
        let greater = self.draw(claim, rules);
        self.set_token(key, greater);
        Ok(Attempt::Granted(greater))
    }

    /// Makes the holder at `key` shared, and admits the waiters that fit beside it.
    pub(super) fn downgrade(
        &mut self,
        key: usize,
        claim: &Claim,
        token: Token,
        rules: &Rules,
        wakers: &mut Wakers,
    ) -> Result<(), Loss> {
        let now = claim.runtime.clock().now();
        self.settle(now, rules, wakers);
        if self.held_as(key, claim).is_none() {
            let evicted = self.node(key, claim.id).is_some();
            return Err(if evicted { Loss::Evicted } else { Loss::Expired });
        }
        self.unmark(key);
        self.turn(key, Mode::Shared);
        self.set_token(key, token);
        self.settle(now, rules, wakers);
        Ok(())
    }

    fn set_token(&mut self, key: usize, to: Token) {
        if let NodeState::Holding { token, .. } = &mut self.nodes[key].state {
            *token = to;
        }
    }

    /// The token and the mode of a holder that may go on.
    fn held_as(&self, key: usize, claim: &Claim) -> Option<(Token, Mode)> {
        let node = self.node(key, claim.id)?;
        match node.state {
            NodeState::Holding { token, evicted: false, .. } => Some((token, node.mode)),
            _ => None,
        }
    }

    /// The claim at `key` as operators see it: a marked one still reads.
    pub(super) fn shown(&self, key: usize) -> ClaimInfo {
        let mut info = self.nodes[key].info();
        if self.is_marked(key) {
            info.mode = Mode::Shared;
        }
        info
    }

    fn is_marked(&self, key: usize) -> bool {
        self.upgrading.as_ref().is_some_and(|upgrading| upgrading.key == key)
    }

    /// Makes the holder a plain reader again if it waits to be alone.
    pub(super) fn unmark(&mut self, key: usize) {
        if self.is_marked(key) {
            self.upgrading = None;
            self.turn(key, Mode::Shared);
        }
    }

    fn turn(&mut self, key: usize, mode: Mode) {
        let before = std::mem::replace(&mut self.nodes[key].mode, mode);
        self.held.remove(before);
        self.held.add(mode);
    }

    /// Notes whom to wake when the marked holder is alone. `false`: it is, or is not marked.
    pub(super) fn waits_to_be_alone(&mut self, key: usize, by: &Waker) -> bool {
        let alone = self.held.holders() == 1;
        match &mut self.upgrading {
            Some(upgrading) if upgrading.key == key && !alone => {
                upgrading.waker = Some(by.clone());
                true
            }
            _ => false,
        }
    }

    /// Wakes the marked holder if it is alone.
    pub(super) fn wake_upgrade(&mut self, wakers: &mut Wakers) {
        if self.held.holders() == 1
            && let Some(upgrading) = &mut self.upgrading
        {
            wakers.push(upgrading.waker.take());
        }
    }
}
