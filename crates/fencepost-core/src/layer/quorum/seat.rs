//! One node's part of a claim: an ordered queue of one request at a time.

mod again;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::linger::Straggler;
use super::node::Node;
use crate::backend::claim::{Claim, Vote};
use crate::backend::{Attempt, Entry, Removed, Renewal};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::runtime::cleanup::{Cleanup, ask, bound, clean_up};
use crate::time::Moment;
use crate::token::Token;
use crate::validity::State;

/// A claim that was undone at a node so many times while it was asked for is given up there. Also how far a lease is looked for.
pub(super) const GENERATIONS: u32 = 16;

pub(super) type Away = Pin<Box<dyn Future<Output = (Box<dyn Entry>, Answer)> + Send>>;

pub(super) enum Answer {
    Attempt(Result<Attempt>),
    Raised(Token, Result<()>),
    Left(Result<Removed>),
    Detached(Result<()>),
}

enum Slot {
    Here(Box<dyn Entry>),
    /// A request is under way: nothing else is sent for this claim before it was answered or given up on, or a release
    /// could overtake its own claim on a slow node and leave an orphan.
    Away(Away),
    Empty,
}

/// What is known of the claim at the node.
#[derive(Debug)]
pub(super) enum Standing {
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

pub(super) struct Seat {
    pub(super) node: Arc<Node>,
    number: u32,
    nodes: u32,
    generation: u32,
    attached: bool,
    pub(super) claim: Arc<Claim>,
    slot: Slot,
    /// What is under way was not polled yet, and begins with that.
    unsent: bool,
    /// What is under way leaves the node, or is to cut the grant loose.
    cleanup: bool,
    pub(super) standing: Standing,
    /// It was asked in this round: a hint of a node that was not has not been acted upon, and would come again and again.
    listens: bool,
    /// Somebody else was given the token that this grant was to have.
    pub(super) outbid: bool,
    /// The validity of the whole claim rests on this one's.
    pub(super) counted: bool,
}

/// Which seat of which claim.
struct Place {
    number: u32,
    nodes: u32,
    generation: u32,
    order: u64,
    /// It takes up a detached grant.
    attached: bool,
    /// The claim holds already, see [`Vote::again`].
    again: bool,
}

impl Seat {
    pub(super) fn new(
        node: &Arc<Node>,
        number: usize,
        nodes: usize,
        outer: &Claim,
        order: u64,
        attached: bool,
    ) -> Seat {
        let (number, nodes) = (number as u32, nodes as u32);
        Seat::of(node, Place { number, nodes, generation: 0, order, attached, again: false }, outer)
    }

    fn of(node: &Arc<Node>, place: Place, outer: &Claim) -> Seat {
        let Place { number, nodes, generation, order, attached, again } = place;
        let id = outer.id.derive(number + nodes * generation);
        let want = outer.want().clone();
        let mut claim = Claim::new(id, want, outer.ttl(), Arc::clone(&outer.holder), outer.runtime.clone());
        // Who holds already stands in nobody's way and waits for nothing.
        claim.join = outer.join && !again;
        claim.renewed = outer.renewed;
        claim.reason.clone_from(&outer.reason);
        claim.vote = Some(Box::new(Vote { order, again, ..Vote::default() }));
        let claim = Arc::new(claim);
        let entry = match attached {
            true => node.backend.attach(Arc::clone(&claim)),
            false => node.backend.enter(Arc::clone(&claim)),
        };
        let (slot, standing) = (Slot::Here(entry), Standing::Fresh);
        Seat {
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
    pub(super) fn renew(&mut self, outer: &Claim) -> bool {
        if self.generation + 1 >= GENERATIONS {
            return false;
        }
        *self = self.anew(outer, self.attached, false);
        true
    }

    fn anew(&self, outer: &Claim, attached: bool, again: bool) -> Seat {
        let (number, nodes, generation) = (self.number, self.nodes, self.generation + 1);
        let place = Place { number, nodes, generation, order: self.vote().order, attached, again };
        Seat::of(&self.node, place, outer)
    }

    /// What was cut loose here is ours again, to be released.
    pub(super) fn take_up(&mut self, outer: &Claim) {
        let Seat { number, nodes, generation, .. } = *self;
        let place =
            Place { number, nodes, generation, order: self.vote().order, attached: true, again: false };
        *self = Seat::of(&self.node, place, outer);
    }

    /// Would whoever looks for a lease find what is granted here?
    pub(super) fn is_found(&self) -> bool {
        self.generation < GENERATIONS
    }

    /// Takes up a grant that was detached.
    pub(super) fn takes_up(&self) -> bool {
        self.attached
    }

    fn vote(&self) -> &Vote {
        self.claim.vote.as_ref().expect("every seat's claim has a vote")
    }

    pub(super) fn rival(&self) -> u64 {
        self.vote().rival.load(Ordering::Relaxed)
    }

    pub(super) fn is_away(&self) -> bool {
        matches!(self.slot, Slot::Away(_))
    }

    /// Something is under way that begins with the next poll.
    pub(super) fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Something is under way, and nothing more is to be sent behind it.
    pub(super) fn is_parting(&self) -> bool {
        self.cleanup && self.is_away()
    }

    /// Whoever has the claim parts with it, and alone polls what is under way: another's poll would take its wakeup.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_parting() || matches!(self.standing, Standing::Left(_) | Standing::Detached)
    }

    /// The token of a grant that is still valid.
    pub(super) fn won(&self, now: Moment) -> Option<Token> {
        match self.standing {
            Standing::Won(token) if !matches!(self.claim.validity.state(now), State::Lost(_)) => Some(token),
            _ => None,
        }
    }

    /// A request may have taken effect, and it is not known whether it has.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_away() || matches!(self.standing, Standing::Failed(_, true))
    }

    /// What the node said when it failed; said once.
    pub(super) fn failure(&mut self) -> Option<Error> {
        match &mut self.standing {
            Standing::Failed(error, _) => error.take(),
            _ => None,
        }
    }

    fn send(&mut self, cleanup: bool, request: impl FnOnce(Box<dyn Entry>) -> Away) {
        self.slot = match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Here(entry) => {
                (self.unsent, self.cleanup) = (true, cleanup);
                Slot::Away(request(entry))
            }
            other => other,
        };
    }

    pub(super) fn ask(&mut self, proposal: Token) {
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

    pub(super) fn raise(&mut self, to: Token) {
        self.send(false, |mut entry| {
            Box::pin(async move {
                let answer = entry.raise(to).await;
                (entry, Answer::Raised(to, answer))
            })
        });
    }

    pub(super) fn leave(&mut self, how: Cleanup) {
        if matches!(self.standing, Standing::Fresh) && !self.attached && !self.is_away() {
            self.standing = Standing::Left(Removed::Nothing);
            return;
        }
        self.send(true, |mut entry| {
            Box::pin(async move {
                let answer = ask(&mut *entry, how).await;
                (entry, Answer::Left(answer))
            })
        });
    }

    pub(super) fn detach(&mut self) {
        self.send(true, |mut entry| {
            Box::pin(async move {
                let answer = entry.detach().await;
                (entry, Answer::Detached(answer))
            })
        });
    }

    /// Takes in an answer that has come. Says whether one has.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.unsent = false;
        let Slot::Away(away) = &mut self.slot else { return false };
        let Poll::Ready((entry, answer)) = away.as_mut().poll(cx) else { return false };
        self.slot = Slot::Here(entry);
        let now = self.claim.runtime.clock().now();
        let error = match answer {
            Answer::Attempt(Ok(Attempt::Granted(grant))) => {
                self.standing = Standing::Won(grant);
                None
            }
            Answer::Attempt(Ok(Attempt::Blocked { again, .. })) => {
                self.standing = Standing::Refused(again);
                None
            }
            Answer::Attempt(Ok(Attempt::Gone)) => {
                self.standing = Standing::Gone;
                None
            }
            Answer::Raised(to, Ok(())) => {
                self.standing = Standing::Won(to);
                None
            }
            // The grant stands as it did, with the token that it had.
            Answer::Raised(_, Err(error)) if error.is_mismatch() => {
                self.outbid = true;
                None
            }
            Answer::Left(Ok(left)) => {
                self.standing = Standing::Left(left);
                None
            }
            Answer::Detached(Ok(())) => {
                self.standing = Standing::Detached;
                None
            }
            Answer::Raised(_, Err(error)) | Answer::Detached(Err(error)) if error.is_lost() => {
                self.standing = Standing::Gone;
                None
            }
            Answer::Attempt(Err(error)) => {
                // A claim that never reached the node needs no cleaning up; one that was refused before is still known.
                let clean = error.effect() == Effect::None && matches!(self.standing, Standing::Fresh);
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
                self.standing = Standing::Failed(Some(error), unknown);
            }
        }
        true
    }

    /// It is left out of this round.
    pub(super) fn sit_out(&mut self) {
        self.listens = false;
    }

    /// Ready: the node has a hint.
    pub(super) fn poll_hint(&mut self, cx: &mut Context<'_>, until: Moment) -> bool {
        match (&mut self.slot, &self.standing) {
            (Slot::Here(entry), Standing::Refused(_)) if self.listens => {
                entry.poll_wait(cx, until).is_ready()
            }
            (Slot::Away(_), _) => self.poll(cx) && matches!(self.standing, Standing::Won(_)),
            _ => false,
        }
    }

    /// What keeps a grant alive.
    pub(super) fn renewal(&self) -> Option<Renewal> {
        match (&self.slot, &self.standing) {
            (Slot::Here(entry), Standing::Won(_)) => entry.renewal(),
            _ => None,
        }
    }

    /// Its request to leave, if that is under way: nobody waits for it any more.
    pub(super) fn straggler(&mut self, how: Cleanup) -> Option<Straggler> {
        if !self.is_parting() {
            return None;
        }
        let Slot::Away(away) = std::mem::replace(&mut self.slot, Slot::Empty) else { return None };
        self.standing = Standing::Left(Removed::Nothing);
        Some(self.left_behind(away, how))
    }

    fn left_behind(&self, away: Away, how: Cleanup) -> Straggler {
        Straggler { node: Arc::clone(&self.node), away, how, until: bound(&self.claim) }
    }

    /// Nothing of the claim is to be left, and nobody waits for that: what is under way is answered first.
    pub(super) fn retire(&mut self, how: Cleanup) {
        let nothing = match self.standing {
            Standing::Left(_) | Standing::Gone | Standing::Detached => true,
            Standing::Fresh => !self.attached,
            Standing::Failed(_, unknown) => !unknown,
            Standing::Won(_) | Standing::Refused(_) => false,
        };
        match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Here(_) if nothing => {}
            Slot::Here(entry) => clean_up(entry, &self.claim, how),
            Slot::Away(away) => self.left_behind(away, how).reap(&self.claim.runtime),
            Slot::Empty => {}
        }
        self.standing = Standing::Left(Removed::Nothing);
    }

    /// The node is not worth asking now.
    pub(super) fn skip(&mut self) {
        if matches!(self.standing, Standing::Fresh) {
            let error = Error::new(ErrorKind::Unreachable, "the node did not answer lately");
            self.standing = Standing::Failed(Some(error), false);
        }
    }
}
