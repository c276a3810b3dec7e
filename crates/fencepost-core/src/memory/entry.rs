//! One claim at the engine in memory.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::engine::Memory;
use super::queue::Queue;
use super::runs::End;
use super::wakers::Wakers;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Entry, Removed, Renewal, Reply};
use crate::error::{Error, Result};
use crate::token::Token;
use crate::validity::Loss;

pub(super) struct MemoryEntry {
    memory: Arc<Memory>,
    claim: Arc<Claim>,
    at: At,
    /// That of its grant, once it was answered.
    token: Option<Token>,
}

/// The state of the entry.
#[derive(Clone, Copy)]
enum At {
    /// Nothing was asked yet.
    Nowhere,
    /// As `Nowhere`, of a claim that takes up a detached grant.
    Detached,
    /// A vote was refused.
    Refused,
    Node(usize),
    /// It was there and is no more.
    Left(Removed),
}

impl MemoryEntry {
    pub(super) fn new(memory: Arc<Memory>, claim: Arc<Claim>, attached: bool) -> MemoryEntry {
        let at = if attached { At::Detached } else { At::Nowhere };
        MemoryEntry { memory, claim, at, token: None }
    }

    fn on_queue<T>(&self, work: impl FnOnce(&mut Queue, &mut Wakers) -> T) -> T {
        self.memory.on_queue(&self.claim.want().name, self.claim.runtime.clock(), work)
    }

    fn take_up(&mut self) -> Option<Token> {
        let (key, token) =
            self.on_queue(|queue, wakers| queue.attach(&self.claim, &self.memory.rules, wakers))?;
        self.at = At::Node(key);
        self.token = Some(token);
        Some(token)
    }

    /// Keeps the run that begins with this grant, if the claim asks for that. It costs nothing otherwise.
    fn begin_run(&mut self, token: Token) {
        self.token = Some(token);
        let (At::Node(key), Some(_)) = (self.at, self.claim.history) else { return };
        self.on_queue(|queue, _| {
            let Some(since) = queue.held_since(key, self.claim.id) else { return };
            self.memory.runs.change(&self.claim, |runs, _| {
                runs.begin(self.claim.run(token, since), |other| queue.is_held_by(other));
            });
        });
    }

    fn end_run(&self, end: End, queue: &Queue, key: usize) {
        let (Some(token), Some(_)) = (self.token, self.claim.history) else { return };
        let held = queue.held_since(key, self.claim.id).map(|since| self.claim.run(token, since));
        self.memory.runs.change(&self.claim, |runs, now| end.note(&self.claim, token, held, runs, now));
    }

    /// Leaves nothing at the engine.
    fn leave(&mut self, end: End) -> Reply<'_, Result<Removed>> {
        if let At::Detached = self.at
            && self.take_up().is_none()
        {
            self.at = At::Left(Removed::Nothing);
        }
        let left = match self.at {
            At::Node(key) => self.on_queue(|queue, wakers| {
                self.end_run(end, queue, key);
                queue.leave(key, &self.claim, &self.memory.rules, wakers)
            }),
            At::Refused => {
                let known = self
                    .on_queue(|queue, wakers| queue.take_back_vote(&self.claim, &self.memory.rules, wakers));
                if known { Removed::Withdrawn } else { Removed::Nothing }
            }
            // Asked again because the reply was lost: the first answer still holds.
            At::Left(left) => left,
            At::Nowhere | At::Detached => Removed::Nothing,
        };
        self.at = At::Left(left);
        Reply::ready(Ok(left))
    }
}

impl Entry for MemoryEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        let attempt = match self.at {
            At::Nowhere | At::Refused if self.claim.vote.is_some() => {
                let (key, attempt) =
                    self.on_queue(|queue, wakers| queue.vote(&self.claim, &self.memory.rules, wakers));
                let refused = if self.claim.waits { At::Refused } else { At::Nowhere };
                self.at = key.map_or(refused, At::Node);
                attempt
            }
            At::Nowhere | At::Refused => {
                let arrived = self.on_queue(|queue, wakers| {
                    queue.check_limit(self.claim.want().mode)?;
                    Ok(queue.arrive(&self.claim, &self.memory.rules, wakers))
                });
                let (key, attempt) = match arrived {
                    Ok(arrived) => arrived,
                    Err(error) => return Reply::ready(Err(error)),
                };
                self.at = key.map_or(At::Nowhere, At::Node);
                attempt
            }
            At::Node(key) => {
                self.on_queue(|queue, wakers| queue.ask(key, &self.claim, &self.memory.rules, wakers))
            }
            At::Detached => self.take_up().map_or(Attempt::Gone, Attempt::Granted),
            At::Left(_) => Attempt::Gone,
        };
        if let Attempt::Granted(token) = attempt {
            self.begin_run(token);
        }
        Reply::ready(Ok(attempt))
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

    fn renewal(&self) -> Option<Renewal> {
        // A node in queue lives as long as the process, and needs nothing.
        if !self.claim.validity.is_confirmed() {
            return None;
        }
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::<Memory>::clone(&self.memory) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.leave(End::Withdrawn)
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.leave(End::Released)
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let now = self.claim.runtime.clock().now();
        let detached = match self.at {
            At::Node(key) => self.on_queue(|queue, _| queue.detach(key, &self.claim, now)),
            _ => Err(Loss::Deleted),
        };
        Reply::ready(detached.map_err(|why| Error::lost(self.claim.want().name.clone(), why)))
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        let At::Node(key) = self.at else { return Reply::ready(Ok(Attempt::Gone)) };
        let answer =
            self.on_queue(|queue, wakers| queue.upgrade(key, &self.claim, join, &self.memory.rules, wakers));
        if let (Ok(Attempt::Granted(token)), Some(before)) = (&answer, self.token) {
            self.token = Some(*token);
            self.memory.runs.change(&self.claim, |runs, _| runs.renumber(before, *token));
        }
        Reply::ready(answer)
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        let downgraded = match self.at {
            At::Node(key) => self.on_queue(|queue, wakers| {
                queue.downgrade(key, &self.claim, token, &self.memory.rules, wakers)
            }),
            _ => Err(Loss::Deleted),
        };
        if let (Ok(()), Some(before)) = (downgraded, self.token.replace(token)) {
            self.memory.runs.change(&self.claim, |runs, _| runs.renumber(before, token));
        }
        Reply::ready(downgraded.map_err(|why| Error::lost(self.claim.want().name.clone(), why)))
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        let raised = match self.at {
            At::Node(key) => self.on_queue(|queue, _| queue.raise(key, &self.claim, to, &self.memory.rules)),
            _ => Err(Error::lost(self.claim.want().name.clone(), Loss::Deleted)),
        };
        Reply::ready(raised)
    }
}
