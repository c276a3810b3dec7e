//! One node's part of a claim: an ordered queue of one request at a time.

mod regain;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fencepost_core::{
    Attempt, Claim, Effect, Entry, Error, ErrorKind, How, Leave, Moment, Removed, Renewal, Result, State,
    Token, Vote, cleanup_deadline,
};

use super::node::Node;

/// A claim that was undone at a node so many times while it was asked for is given up there. Also how far a lease is looked for.
pub(crate) const GENERATIONS: u32 = 16;

pub(crate) type Away = Pin<Box<dyn Future<Output = (Entry, Answer)> + Send>>;

/// A request whose answer nobody waits for: a majority had confirmed before, or the claim was given up.
pub(crate) struct Straggler {
    pub(crate) node: Arc<Node>,
    pub(crate) away: Away,
    pub(crate) how: Leave,
    /// When it is given up.
    pub(crate) until: Moment,
}

pub(crate) enum Answer {
    Attempt(Result<Attempt>),
    Raised(Token, Result<()>),
    Left(Result<Removed>),
    Detached(Result<()>),
}

enum Slot {
    Here(Entry),
    /// A request is under way: nothing else is sent for this claim before it was answered or given up on, or a release
    /// could overtake its own claim on a slow node and leave an orphan.
    Away(Away),
    Empty,
}

/// The known state of the claim at the node.
#[derive(Debug)]
pub(crate) enum NodeState {
    /// Nothing of it is there.
    Fresh,
    /// Refused; `again` is when the node would like to be asked again.
    Refused(Option<Moment>),
    Won(Token),
    /// The last request failed; `true`: it may have taken effect.
    Failed(Option<Error>, bool),
    Gone,
    Left(Removed),
    Detached,
}

pub(crate) struct NodeClaim {
    pub(crate) node: Arc<Node>,
    number: u32,
    nodes: u32,
    generation: u32,
    attached: bool,
    pub(crate) claim: Arc<Claim>,
    slot: Slot,
    /// The request under way was not polled yet. Its first poll sends it.
    unsent: bool,
    /// The request under way withdraws the claim or detaches the grant.
    cleanup: bool,
    pub(crate) standing: NodeState,
    /// It was asked in this round: a hint of a node that was not has not been acted upon, and would come again and again.
    listens: bool,
    /// Somebody else was given the token that this grant was to have.
    pub(crate) outbid: bool,
    /// The validity of the whole claim rests on this one's.
    pub(crate) counted: bool,
}

/// Which seat of which claim.
struct Seat {
    number: u32,
    nodes: u32,
    generation: u32,
    order: u64,
    /// It takes up a detached grant.
    attached: bool,
    /// The claim holds already, see [`Vote::regains`].
    regains: bool,
}

impl NodeClaim {
    pub(crate) fn new(
        node: &Arc<Node>,
        number: usize,
        nodes: usize,
        outer: &Claim,
        order: u64,
        attached: bool,
    ) -> NodeClaim {
        let (number, nodes) = (number as u32, nodes as u32);
        NodeClaim::of(node, Seat { number, nodes, generation: 0, order, attached, regains: false }, outer)
    }

    fn of(node: &Arc<Node>, seat: Seat, outer: &Claim) -> NodeClaim {
        let Seat { number, nodes, generation, order, attached, regains } = seat;
        let mut claim = outer.part(number + nodes * generation);
        // A claim that is held already needs no position in the queue.
        claim.waits = outer.waits && !regains;
        claim.vote = Some(Box::new(Vote::new(order, 0).regains(regains)));
        claim.give_lease();
        let claim = Arc::new(claim);
        let how = if attached { How::Attach } else { How::Enter };
        // The seat says when it leaves, because a claim that was undone at a node needs no request.
        let entry = Arc::clone(&node.backend).entry(Arc::clone(&claim), how).on_drop(None);
        let (slot, standing) = (Slot::Here(entry), NodeState::Fresh);
        NodeClaim {
            node: Arc::clone(node),
            number,
            nodes,
            generation,
            attached,
            claim,
            slot,
            unsent: false,
            cleanup: false,
            standing,
            listens: false,
            outbid: false,
            counted: false,
        }
    }

    /// The same with a fresh id: what was there is undone. `false`: that was done too often.
    pub(crate) fn renew(&mut self, outer: &Claim) -> bool {
        if self.generation + 1 >= GENERATIONS {
            return false;
        }
        *self = self.anew(outer, self.attached, false);
        true
    }

    fn anew(&self, outer: &Claim, attached: bool, regains: bool) -> NodeClaim {
        let (number, nodes, generation) = (self.number, self.nodes, self.generation + 1);
        let seat = Seat { number, nodes, generation, order: self.vote().order, attached, regains };
        NodeClaim::of(&self.node, seat, outer)
    }

    /// Takes a grant back that was detached here, so that it is released.
    pub(crate) fn take_up(&mut self, outer: &Claim) {
        let NodeClaim { number, nodes, generation, .. } = *self;
        let seat =
            Seat { number, nodes, generation, order: self.vote().order, attached: true, regains: false };
        *self = NodeClaim::of(&self.node, seat, outer);
    }

    /// Whether the node has granted the claim, and a client that attaches the lease would find the grant there.
    pub(crate) fn has_findable_grant(&self) -> bool {
        matches!(self.standing, NodeState::Won(_)) && self.generation < GENERATIONS
    }

    /// Takes up a grant that was detached.
    pub(crate) fn takes_up(&self) -> bool {
        self.attached
    }

    fn vote(&self) -> &Vote {
        self.claim.vote.as_ref().expect("every seat's claim has a vote")
    }

    pub(crate) fn rival(&self) -> u64 {
        self.vote().rival.load(Ordering::Relaxed)
    }

    pub(crate) fn is_away(&self) -> bool {
        matches!(self.slot, Slot::Away(_))
    }

    /// Something is under way that begins with the next poll.
    pub(crate) fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Something is under way, and nothing more is to be sent behind it.
    pub(crate) fn is_parting(&self) -> bool {
        self.cleanup && self.is_away()
    }

    /// Whether the owner withdraws the claim. Then only the owner polls the request: another poll would take its waker.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_parting() || matches!(self.standing, NodeState::Left(_) | NodeState::Detached)
    }

    /// The token of a grant that is still valid.
    pub(crate) fn won(&self, now: Moment) -> Option<Token> {
        match self.standing {
            NodeState::Won(token) if !matches!(self.claim.validity.state(now), State::Lost(_)) => Some(token),
            _ => None,
        }
    }

    /// The node has the claim, waiting or granted, or may have it because a request has no answer.
    pub(crate) fn may_be_there(&self) -> bool {
        let there =
            matches!(self.standing, NodeState::Won(_) | NodeState::Refused(_) | NodeState::Failed(_, true));
        there || self.is_away()
    }

    /// Returns the node's error, once.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        match &mut self.standing {
            NodeState::Failed(error, _) => error.take(),
            _ => None,
        }
    }

    fn send(&mut self, cleanup: bool, request: impl FnOnce(Entry) -> Away) {
        self.slot = match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Here(entry) => {
                (self.unsent, self.cleanup) = (true, cleanup);
                Slot::Away(request(entry))
            }
            other => other,
        };
    }

    pub(crate) fn ask(&mut self, proposal: Token) {
        let vote = self.vote();
        vote.proposal.store(proposal.get(), Ordering::Relaxed);
        vote.rival.store(0, Ordering::Relaxed);
        self.listens = true;
        self.send(false, |mut entry| {
            Box::pin(async move {
                let answer = entry.attempt().await;
                (entry, Answer::Attempt(answer))
            })
        });
    }

    pub(crate) fn raise(&mut self, to: Token) {
        self.send(false, |mut entry| {
            Box::pin(async move {
                let answer = entry.raise(to).await;
                (entry, Answer::Raised(to, answer))
            })
        });
    }

    pub(crate) fn leave(&mut self, how: Leave) {
        if matches!(self.standing, NodeState::Fresh) && !self.attached {
            self.standing = NodeState::Left(Removed::Nothing);
            return;
        }
        self.send(true, |mut entry| {
            Box::pin(async move {
                let answer = entry.remove(how).await;
                (entry, Answer::Left(answer))
            })
        });
    }

    pub(crate) fn detach(&mut self) {
        self.send(true, |mut entry| {
            Box::pin(async move {
                let answer = entry.detach().await;
                (entry, Answer::Detached(answer))
            })
        });
    }

    /// Takes in an answer that has come. Says whether one has.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.unsent = false;
        let Slot::Away(away) = &mut self.slot else { return false };
        let Poll::Ready((entry, answer)) = away.as_mut().poll(cx) else { return false };
        self.slot = Slot::Here(entry);
        let now = self.claim.runtime.clock().now();
        let error = match answer {
            Answer::Attempt(Ok(Attempt::Granted(grant))) => {
                self.standing = NodeState::Won(grant);
                None
            }
            Answer::Attempt(Ok(Attempt::Blocked { next_attempt, .. })) => {
                self.standing = NodeState::Refused(next_attempt);
                None
            }
            Answer::Attempt(Ok(Attempt::Gone)) => {
                self.standing = NodeState::Gone;
                None
            }
            Answer::Raised(to, Ok(())) => {
                self.standing = NodeState::Won(to);
                None
            }
            // The grant stands as it did, with the token that it had.
            Answer::Raised(_, Err(error)) if error.is_mismatch() => {
                self.outbid = true;
                None
            }
            Answer::Left(Ok(left)) => {
                self.standing = NodeState::Left(left);
                None
            }
            Answer::Detached(Ok(())) => {
                self.standing = NodeState::Detached;
                None
            }
            Answer::Raised(_, Err(error)) | Answer::Detached(Err(error)) if error.is_lost() => {
                self.standing = NodeState::Gone;
                None
            }
            Answer::Attempt(Err(error)) => {
                // A claim that never reached the node needs no cleaning up; one that was refused before is still known.
                let clean = error.effect() == Effect::None && matches!(self.standing, NodeState::Fresh);
                Some((error, !clean))
            }
            Answer::Raised(_, Err(error)) | Answer::Left(Err(error)) | Answer::Detached(Err(error)) => {
                Some((error, true))
            }
        };
        match error {
            None => {
                self.node.answered();
                self.node.keeps_up();
            }
            Some((error, unknown)) => {
                self.node.failed(now);
                self.standing = NodeState::Failed(Some(error), unknown);
            }
        }
        true
    }

    /// It is left out of this round.
    pub(crate) fn sit_out(&mut self) {
        self.listens = false;
    }

    /// Ready: the node has a hint.
    pub(crate) fn poll_hint(&mut self, cx: &mut Context<'_>) -> bool {
        match (&mut self.slot, &self.standing) {
            (Slot::Here(entry), NodeState::Refused(_)) if self.listens => entry.poll_wait(cx).is_ready(),
            (Slot::Away(_), _) => self.poll(cx) && matches!(self.standing, NodeState::Won(_)),
            _ => false,
        }
    }

    /// Returns the session that keeps the grant alive.
    pub(crate) fn renewal(&self) -> Option<Renewal> {
        match (&self.slot, &self.standing) {
            (Slot::Here(entry), NodeState::Won(_)) => entry.renewal(),
            _ => None,
        }
    }

    /// Its request to leave, if that is under way: nobody waits for it any more.
    pub(crate) fn straggler(&mut self, how: Leave) -> Option<Straggler> {
        if !self.is_parting() {
            return None;
        }
        let Slot::Away(away) = std::mem::replace(&mut self.slot, Slot::Empty) else { return None };
        self.standing = NodeState::Left(Removed::Nothing);
        Some(self.left_behind(away, how))
    }

    fn left_behind(&self, away: Away, how: Leave) -> Straggler {
        Straggler { node: Arc::clone(&self.node), away, how, until: cleanup_deadline(&self.claim) }
    }

    /// Nothing of the claim is to be left, unless it is being detached, and nobody waits for that: what is under way is answered first.
    pub(crate) fn retire(&mut self, how: Leave) {
        let nothing = match self.standing {
            NodeState::Left(_) | NodeState::Gone | NodeState::Detached => true,
            NodeState::Failed(_, unknown) => !unknown,
            NodeState::Fresh | NodeState::Won(_) | NodeState::Refused(_) => false,
        };
        match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Here(_) if nothing => {}
            Slot::Here(entry) => entry.clean_up(how),
            Slot::Away(away) => self.left_behind(away, how).clean_up(&self.claim.runtime),
            Slot::Empty => {}
        }
        self.standing = NodeState::Left(Removed::Nothing);
    }

    /// The node is not worth asking now.
    pub(crate) fn skip(&mut self) {
        if matches!(self.standing, NodeState::Fresh) {
            let error = Error::new(ErrorKind::Unreachable, "the node did not answer lately");
            self.standing = NodeState::Failed(Some(error), false);
        }
    }
}
