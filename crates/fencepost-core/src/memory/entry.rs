//! What is asked of the engine in memory for one claim.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::engine::Memory;
use super::queue::Queue;
use super::wakers::Wakers;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Session};
use crate::entry::Found;
use crate::entry::place::{Leave, Left, Place, Request, Turn};
use crate::token::Token;

pub(super) struct MemoryPlace {
    memory: Arc<Memory>,
    claim: Arc<Claim>,
    /// It takes up a detached grant.
    attaches: bool,
    at: At,
}

/// Where the claim is.
#[derive(Clone, Copy)]
enum At {
    Nowhere,
    /// A vote was refused.
    Refused,
    Node(usize),
}

impl MemoryPlace {
    pub(super) fn new(memory: Arc<Memory>, claim: Arc<Claim>, attaches: bool) -> MemoryPlace {
        MemoryPlace { memory, claim, attaches, at: At::Nowhere }
    }

    fn on_queue<T>(&self, work: impl FnOnce(&mut Queue, &mut Wakers) -> T) -> T {
        self.memory.on_queue(&self.claim.want().name, self.claim.runtime.clock(), work)
    }

    fn take_up(&mut self) -> Option<Token> {
        let (key, token) =
            self.on_queue(|queue, wakers| queue.attach(&self.claim, &self.memory.rules, wakers))?;
        self.at = At::Node(key);
        Some(token)
    }
}

impl Place for MemoryPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let (memory, claim) = (&self.memory, &self.claim);
        let attempt = match self.at {
            At::Nowhere if self.attaches => self.take_up().map_or(Attempt::Gone, Attempt::Granted),
            At::Nowhere | At::Refused if claim.vote.is_some() => {
                let (key, attempt) = self.on_queue(|queue, wakers| queue.vote(claim, &memory.rules, wakers));
                let refused = if claim.waits { At::Refused } else { At::Nowhere };
                self.at = key.map_or(refused, At::Node);
                attempt
            }
            At::Nowhere | At::Refused => {
                let arrived = self.on_queue(|queue, wakers| {
                    queue.check_limit(claim.want().mode)?;
                    Ok(queue.arrive(claim, &memory.rules, wakers))
                });
                let (key, attempt) = match arrived {
                    Ok(arrived) => arrived,
                    Err(error) => return Request::ready(Err(error)),
                };
                self.at = key.map_or(At::Nowhere, At::Node);
                attempt
            }
            At::Node(key) => self.on_queue(|queue, wakers| queue.ask(key, claim, &memory.rules, wakers)),
        };
        Request::ready(Ok(attempt))
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut shard = self.memory.shard(&self.claim.want().name);
        let queue = shard.get_mut(&self.claim.want().name);
        if let At::Refused = self.at {
            return queue.map_or(Poll::Ready(()), |queue| queue.voters.poll_hint(self.claim.id, cx));
        }
        let At::Node(key) = self.at else { return Poll::Ready(()) };
        if queue.is_some_and(|queue| queue.waits(key, self.claim.id, cx.waker())) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn leave(&mut self, how: Leave, _again: bool) -> Request<'_, Left> {
        if let (true, At::Nowhere) = (self.attaches, self.at) {
            self.take_up();
        }
        let (memory, claim) = (&self.memory, &self.claim);
        let left = match self.at {
            At::Nowhere => Found::Missing.into(),
            At::Refused => {
                let known = self.on_queue(|queue, wakers| queue.take_back_vote(claim, &memory.rules, wakers));
                if known { Found::Valid.into() } else { Found::Missing.into() }
            }
            At::Node(key) => self.on_queue(|queue, wakers| match how {
                Leave::Release | Leave::Withdraw => queue.leave(key, claim, &memory.rules, wakers).into(),
                Leave::Detach => {
                    let detached = queue.detach(key, claim, claim.runtime.clock().now());
                    detached.map_or(Found::Missing, |()| Found::There).into()
                }
            }),
        };
        Request::ready(Ok(left))
    }

    fn turn(&mut self, to: Turn) -> Request<'_, Attempt> {
        let At::Node(key) = self.at else { return Request::ready(Ok(Attempt::Gone)) };
        let (rules, claim) = (&self.memory.rules, &self.claim);
        let turned = self.on_queue(|queue, wakers| match to {
            Turn::Exclusive { join } => queue.upgrade(key, claim, join, rules, wakers),
            Turn::Shared { token } => {
                let shared = queue.downgrade(key, claim, token, rules, wakers);
                Ok(shared.map_or(Attempt::Gone, |()| Attempt::Granted(token)))
            }
            Turn::Raise { to } => queue.raise(key, claim, to, rules).map(|()| Attempt::Granted(to)),
        });
        Request::ready(turned)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        // A node in queue lives as long as the process, and needs nothing.
        holds.then(|| Arc::<Memory>::clone(&self.memory) as Arc<dyn Session>)
    }
}
