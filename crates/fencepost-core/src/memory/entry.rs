//! One claim at the engine in memory.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::line::Line;
use super::{Kind, Memory};
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Entry, Removed, Renewal, Reply};
use crate::error::{Error, Result};
use crate::time::Moment;
use crate::token::Token;
use crate::validity::Loss;

pub(super) struct MemoryEntry {
    memory: Arc<Memory>,
    claim: Arc<Claim>,
    at: At,
}

/// What the entry knows of its place.
#[derive(Clone, Copy)]
enum At {
    /// Nothing was asked yet.
    Nowhere,
    /// As `Nowhere`, of a claim that takes up a detached grant.
    Detached,
    /// A vote was refused.
    Refused,
    Place(usize),
    /// It was there and is no more.
    Left(Removed),
}

impl MemoryEntry {
    pub(super) fn new(memory: Arc<Memory>, claim: Arc<Claim>, attached: bool) -> MemoryEntry {
        MemoryEntry { memory, claim, at: if attached { At::Detached } else { At::Nowhere } }
    }

    fn on_line<T>(&self, work: impl FnOnce(&mut Line, &mut super::Wakers) -> T) -> T {
        self.memory.on_line(&self.claim.want().name, self.claim.runtime.clock(), work)
    }

    fn take_up(&mut self) -> Option<Token> {
        let (key, token) = self.on_line(|line, wakers| line.attach(&self.claim, &self.memory, wakers))?;
        self.at = At::Place(key);
        Some(token)
    }
}

impl Entry for MemoryEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        let attempt = match self.at {
            At::Nowhere | At::Refused if self.claim.vote.is_some() => {
                let (key, attempt) =
                    self.on_line(|line, wakers| line.vote(&self.claim, &self.memory, wakers));
                let refused = if self.claim.join { At::Refused } else { At::Nowhere };
                self.at = key.map_or(refused, At::Place);
                attempt
            }
            At::Nowhere | At::Refused => {
                let (key, attempt) =
                    self.on_line(|line, wakers| line.arrive(&self.claim, &self.memory, wakers));
                self.at = key.map_or(At::Nowhere, At::Place);
                attempt
            }
            At::Place(key) => self.on_line(|line, wakers| line.ask(key, &self.claim, &self.memory, wakers)),
            At::Detached => self.take_up().map_or(Attempt::Gone, Attempt::Granted),
            At::Left(_) => Attempt::Gone,
        };
        Reply::ready(Ok(attempt))
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, _: Moment) -> Poll<()> {
        let mut shard = self.memory.shard(&self.claim.want().name);
        let line = shard.get_mut(&self.claim.want().name);
        if let At::Refused = self.at {
            return line.map_or(Poll::Ready(()), |line| line.voters.poll_hint(self.claim.id, cx));
        }
        let At::Place(key) = self.at else { return Poll::Ready(()) };
        if line.is_some_and(|line| line.waits(key, self.claim.id, cx.waker())) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn renewal(&self) -> Option<Renewal> {
        // A place in line lives as long as the process, and needs nothing.
        if self.memory.kind == Kind::Turns || !self.claim.validity.is_confirmed() {
            return None;
        }
        Some(Renewal { claim: Arc::clone(&self.claim), session: Arc::<Memory>::clone(&self.memory) })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        if let At::Detached = self.at
            && self.take_up().is_none()
        {
            self.at = At::Left(Removed::Nothing);
        }
        let left = match self.at {
            At::Place(key) => self.on_line(|line, wakers| line.leave(key, &self.claim, &self.memory, wakers)),
            At::Refused => {
                let known =
                    self.on_line(|line, wakers| line.take_back_vote(&self.claim, &self.memory, wakers));
                if known { Removed::Withdrawn } else { Removed::Nothing }
            }
            // Asked again because the reply was lost: the first answer still holds.
            At::Left(left) => left,
            At::Nowhere | At::Detached => Removed::Nothing,
        };
        self.at = At::Left(left);
        Reply::ready(Ok(left))
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        let now = self.claim.runtime.clock().now();
        let detached = match self.at {
            At::Place(key) => self.on_line(|line, _| line.detach(key, &self.claim, now)),
            _ => Err(Loss::Deleted),
        };
        Reply::ready(detached.map_err(|why| Error::lost(self.claim.want().name.clone(), why)))
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        let raised = match self.at {
            At::Place(key) => self.on_line(|line, _| line.raise(key, &self.claim, to, &self.memory)),
            _ => Err(Error::lost(self.claim.want().name.clone(), Loss::Deleted)),
        };
        Reply::ready(raised)
    }
}
