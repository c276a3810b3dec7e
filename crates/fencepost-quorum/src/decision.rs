//! The decision that follows from the replies so far.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use fencepost_core::{Mode, Token};

use super::node_claim::{NodeClaim, NodeState};
use super::place::{QuorumPlace, Verdict};

impl QuorumPlace {
    /// The verdict, if there is one; until then it sends what is missing for it.
    pub(crate) fn judge(&mut self, seats: &mut [NodeClaim], late: bool) -> Option<Verdict> {
        let (now, need, nodes) = (self.shared.clock.now(), self.need, seats.len());
        if self.attached {
            for seat in
                seats.iter_mut().filter(|seat| matches!(seat.standing, NodeState::Gone) && !seat.is_away())
            {
                // It may have been granted there under a later id.
                if seat.renew(&self.claim) {
                    seat.ask(Token::default());
                }
            }
        }
        if let Some(first) = self.first {
            if seats[first].is_away() && !late {
                return None;
            }
            self.first = None;
            if let NodeState::Refused(_) = seats[first].standing {
                return Some(Verdict::Refused);
            }
            // It won there, or that node failed.
            let proposal = self.shared.proposal();
            for seat in seats.iter_mut().filter(|seat| !seat.is_away() && seat.won(now).is_none()) {
                seat.ask(proposal);
            }
            if !late {
                return None;
            }
        }
        let tokens: Vec<Token> = seats.iter().filter_map(|seat| seat.won(now)).collect();
        let count = |token: &Token| tokens.iter().filter(|other| *other == token).count();
        if tokens.len() >= need && self.attached {
            // A majority has the grant's own; the others may have given it another, and answer first. Without that majority the least
            // one of those that are equal is safe: it is above no later grant's.
            let most = tokens.iter().max_by_key(|token| (count(token), Reverse(token.get()))).copied();
            let own = most.is_some_and(|most| count(&most) >= self.shared.need);
            let all = late || !seats.iter().any(NodeClaim::is_away);
            return most.filter(|_| own || all).map(Verdict::Won);
        }
        if tokens.len() >= need {
            let outbid = seats.iter_mut().fold(false, |any, seat| std::mem::take(&mut seat.outbid) | any);
            let top = tokens.iter().copied().max().unwrap_or_default().max(self.target);
            if !outbid && count(&top) >= self.shared.need {
                return Some(Verdict::Won(top));
            }
            if late {
                return Some(Verdict::Failed);
            }
            // Nodes that differ have clocks of their own: the next proposal is made by theirs.
            let mut sorted = tokens.clone();
            sorted.sort_unstable();
            let (median, wall) =
                (sorted[sorted.len() / 2].get() as i64, self.shared.clock.wall_micros() as i64);
            self.shared.offset.store(median.saturating_sub(wall), Ordering::Relaxed);
            // Beside others who hold it with us, the next token is soon somebody else's: ours is put where theirs do not come.
            let alone = self.claim.want().mode == Mode::Exclusive;
            if outbid || (!alone && self.target == Token::default()) {
                self.outbids += 1;
                let spread = (self.claim.id.derive(self.outbids).as_u128() >> 100) as u64 % 1024;
                let ahead = (500u64 << self.outbids.min(6)) + spread;
                self.target = Token::new(top.max(self.shared.proposal()).get() + ahead);
            } else {
                self.target = top;
            }
            for seat in seats.iter_mut() {
                if !seat.is_away() && seat.won(now).is_some_and(|token| token < self.target) {
                    seat.raise(self.target);
                }
            }
            return None;
        }
        let away = seats.iter().filter(|seat| seat.is_away()).count();
        if !late && tokens.len() + away >= need {
            return None;
        }
        let failed = |seat: &&NodeClaim| seat.is_away() || matches!(seat.standing, NodeState::Failed(..));
        if seats.iter().filter(failed).count() > nodes - need {
            if late {
                // Those who were only to be asked after the first one have not been heard yet.
                let silent = seats.iter().filter(|seat| seat.is_away() && !seat.is_unsent());
                silent.for_each(|seat| seat.node.failed(now));
            } else if away > 0 {
                // Some may answer yet.
                return None;
            }
            return Some(Verdict::Failed);
        }
        let gone = seats.iter().filter(|seat| matches!(seat.standing, NodeState::Gone)).count();
        Some(match self.attached {
            // A lease is gone when no majority can have it any more; else one that is silent may.
            true if gone > nodes - need => Verdict::Gone,
            true => Verdict::Failed,
            false if gone >= need => Verdict::Gone,
            false => Verdict::Refused,
        })
    }
}
