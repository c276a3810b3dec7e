//! A node votes again for a claim that is held without it.

use std::sync::atomic::Ordering;

use fencepost_core::{Attempt, Claim, Leave, Loss, Moment, State, Token};

use super::{Answer, NodeClaim, NodeState};

impl NodeClaim {
    /// The claim is held, and not by this node, which might give its vote: it restarted, or was down, or somebody else had it. Not
    /// one that has evicted the claim, nor one whose vote the claim's validity rests on: whatever was asked of that node since, to take
    /// it back would weaken the claim before another one is there.
    pub(in super::super) fn lacks_vote(&self, now: Moment) -> bool {
        let counts = self.counted && !matches!(self.claim.validity.state(now), State::Lost(_));
        let parted = matches!(self.standing, NodeState::Left(_) | NodeState::Detached);
        let evicted = self.claim.validity.ended() == Some(Loss::Evicted);
        !parted && !evicted && !counts && !self.is_away() && self.won(now).is_none()
    }

    /// Asks for that vote, under an id that the node has not heard of: what it knows of an earlier one is withdrawn. `token`: that
    /// of the whole claim.
    pub(in super::super) fn ask_to_regain(&mut self, outer: &Claim, token: Token) {
        let fresh = !matches!(self.standing, NodeState::Won(_) | NodeState::Gone);
        if !(self.vote().regains && fresh) {
            if self.claim.validity.ended() == Some(Loss::Deleted) {
                self.standing = NodeState::Gone;
            }
            self.retire(Leave::Withdraw);
            *self = self.anew(outer, false, true);
        }
        self.vote().proposal.store(token.get(), Ordering::Relaxed);
        self.send(false, |mut entry| {
            Box::pin(async move {
                let mut answer = entry.attempt().await;
                // Dropped here, or refused: the vote counts, only that the node shows another token.
                if let Ok(Attempt::Granted(grant)) = &mut answer
                    && *grant != token
                    && entry.raise(token).await.is_ok()
                {
                    *grant = token;
                }
                (entry, Answer::Attempt(answer))
            })
        });
    }

    /// Does the whole claim's validity rest on a vote of this node? From now on, if it lives, and the vote is there.
    pub(in super::super) fn counts(&mut self, outer: &Claim, now: Moment) -> bool {
        if !self.counted && self.won(now).is_some() {
            self.counted = outer.validity.rest_instead(now, self.number as usize, &self.claim.validity);
        }
        self.counted
    }
}
