//! How a claim leaves all nodes: its release, its withdrawal, its detachment.

use std::time::Duration;

use fencepost_core::{Error, Found, Leave, Left, Removed, Result, State};

use super::node_claim::{NodeClaim, NodeState};
use super::place::QuorumPlace;

/// So long at most a release that a majority has confirmed waits for those to whom it has not been sent yet, and no longer than
/// the majority took: what is left to the background is sent only there, and keeps the lock held at that node until then.
const STRAGGLERS: Duration = Duration::from_millis(1);

impl QuorumPlace {
    pub(crate) fn dispose(&mut self, how: Leave) {
        self.seats().iter_mut().for_each(|seat| seat.retire(how));
    }

    pub(crate) async fn depart(&mut self, how: Leave) -> Result<Left> {
        let now = self.shared.clock.now();
        let valid = self.grant.is_some() && !matches!(self.claim.validity.state(now), State::Lost(_));
        let need = self.shared.need;
        let until = now + self.shared.patience;
        let mut hurried = false;
        for seat in self.seats().iter_mut().filter(|seat| !seat.is_away()) {
            // A request that failed before may have taken effect.
            if let NodeState::Failed(_, true) = seat.standing {
                seat.standing = NodeState::Refused(None);
            }
        }
        let left = self
            .judged(until, |me, seats, late| {
                for seat in seats.iter_mut().filter(|seat| !seat.is_away()) {
                    match seat.standing {
                        // It may have been granted there under a later id.
                        NodeState::Left(Removed::Nothing) if seat.takes_up() => {
                            if seat.renew(&me.claim) {
                                seat.leave(how);
                            }
                        }
                        NodeState::Left(_) | NodeState::Failed(_, true) => {}
                        // It was cut loose, and not by a majority, or nobody was there any more to be told of it.
                        NodeState::Detached => {
                            seat.take_up(&me.claim);
                            seat.leave(how);
                        }
                        NodeState::Gone | NodeState::Failed(_, false) => {
                            seat.standing = NodeState::Left(Removed::Nothing);
                        }
                        _ => seat.leave(how),
                    }
                }
                let left = |which: Removed| {
                    let is = |seat: &&NodeClaim| {
                        matches!(seat.standing, NodeState::Left(left) if left == which) && !seat.is_away()
                    };
                    seats.iter().filter(is).count()
                };
                let (released, withdrawn) = (left(Removed::Released), left(Removed::Withdrawn));
                let nothing = left(Removed::Nothing);
                let waits = seats.iter().any(NodeClaim::is_away);
                if released >= need {
                    // Behind an answer that has not come yet the request to leave has not been sent.
                    let stragglers = || seats.iter().filter(|seat| seat.is_away() && !seat.is_parting());
                    if late {
                        stragglers().for_each(|seat| seat.node.straggles());
                    } else if stragglers().count() > 0 && stragglers().all(|seat| seat.node.is_punctual()) {
                        if !hurried {
                            hurried = true;
                            let so_far = me.shared.clock.now();
                            me.hurry = Some(so_far + so_far.since(now).min(STRAGGLERS));
                        }
                        return None;
                    }
                    return Some(Ok(Removed::Released));
                }
                let gone = released + withdrawn + nothing;
                if waits && !late {
                    return None;
                }
                if gone < need {
                    return Some(Err(()));
                }
                Some(Ok(match () {
                    () if me.grant.is_none() && !me.attached && withdrawn > 0 => Removed::Withdrawn,
                    () if nothing < need && (valid || me.attached) => Removed::Released,
                    () => Removed::Nothing,
                }))
            })
            .await;
        let Ok(left) = left else { return Err(self.failure()) };
        for seat in self.seats().iter_mut() {
            match seat.straggler(how) {
                Some(straggler) => self.shared.lingering.add(straggler, &self.claim.runtime),
                None => seat.retire(how),
            }
        }
        Ok(Left::by_parts(left))
    }

    pub(crate) async fn cut_loose(&mut self) -> Result<Left> {
        let (ttl, until) = (self.claim.ttl(), self.shared.clock.now() + self.shared.patience);
        self.seats().iter().for_each(|seat| seat.claim.set_ttl(ttl));
        let need = self.need;
        let detached = self.judged(until, |_, seats, late| {
            let done = seats.iter().filter(|seat| matches!(seat.standing, NodeState::Detached)).count();
            if late || done >= need {
                return Some(done);
            }
            // Not while the token is raised at the node: that is answered first.
            for seat in seats.iter_mut().filter(|seat| seat.has_findable_grant() && !seat.is_away()) {
                seat.detach();
            }
            (!seats.iter().any(NodeClaim::is_away)).then_some(done)
        });
        if detached.await < need {
            return Err(match self.claim.validity.state(self.shared.clock.now()) {
                State::Lost(why) => Error::lost(self.claim.want().name.clone(), why),
                _ => self.shared.unreachable().unknown(),
            });
        }
        for seat in self.seats().iter_mut() {
            if !seat.has_findable_grant() {
                // It was never granted, or nobody would find it.
                seat.retire(Leave::Withdraw);
            } else if !seat.is_parting() {
                // It was not sent yet, because the node was still raising the token. A node that was asked may answer late.
                seat.detach();
                seat.retire(Leave::Detach);
            }
        }
        Ok(Found::There.into())
    }
}
