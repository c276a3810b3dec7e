//! What is asked of the engine in memory for one claim.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::engine::Memory;
use super::queue::{Change, MemoryQueue};
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Session};
use crate::entry::Found;
use crate::entry::place::{Conversion, Leave, Left, Place, Request};
use crate::error::Result;

pub(super) struct MemoryPlace {
    memory: Arc<Memory>,
    claim: Arc<Claim>,
    /// It takes up a detached grant.
    attaches: bool,
    /// Its number at the engine, where it waits or holds. `None`: its next request is a first one. No claim has the number 0.
    number: Option<u64>,
}

impl MemoryPlace {
    pub(super) fn new(memory: Arc<Memory>, claim: Arc<Claim>, attaches: bool) -> MemoryPlace {
        MemoryPlace { memory, claim, attaches, number: None }
    }

    fn on_queue<T>(&self, work: impl FnOnce(&mut MemoryQueue, &mut Change) -> T) -> T {
        self.memory.on_queue(&self.claim.want().name, self.claim.runtime.clock(), work)
    }

    fn arrive(&mut self) -> Result<Attempt> {
        let claim = &self.claim;
        let (number, attempt) = self.on_queue(|queue, change| {
            let number = change.rules.next_arrival();
            queue.arrive(number, claim, change).map(|attempt| (number, attempt))
        })?;
        // A vote is not queued: each request for it is a first one until it is granted.
        let is_queued = claim.waits && claim.vote.is_none();
        self.number = (is_queued || matches!(attempt, Attempt::Granted(_))).then_some(number);
        Ok(attempt)
    }

    fn take_up(&mut self) -> Attempt {
        let grant = self.on_queue(|queue, change| queue.attach(&self.claim, change));
        self.number = grant.map(|(number, _)| number);
        grant.map_or(Attempt::Gone, |(_, token)| Attempt::Granted(token))
    }
}

impl Place for MemoryPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::ready(match self.number {
            Some(number) => Ok(self.on_queue(|queue, _| queue.ask(number))),
            None if self.attaches => Ok(self.take_up()),
            None => self.arrive(),
        })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (claim, number) = (&self.claim, self.number.unwrap_or_default());
        self.memory.with_queue(&claim.want().name, |queue| queue.poll_news(number, claim, cx))
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        // A grant that the claim may not take up is not its to remove, although it has the claim's id.
        if self.attaches && self.number.is_none() && self.take_up() == Attempt::Gone {
            return Request::ready(Ok(Found::Missing.into()));
        }
        let (claim, number) = (&self.claim, self.number.unwrap_or_default());
        Request::ready(Ok(self.on_queue(|queue, change| match how {
            Leave::Release | Leave::Withdraw => queue.leave(number, claim).into(),
            Leave::Detach if queue.detach(number, claim, change.now) => Found::There.into(),
            Leave::Detach => Found::Missing.into(),
        })))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        let (claim, number) = (&self.claim, self.number.unwrap_or_default());
        Request::ready(self.on_queue(|queue, change| match to {
            Conversion::Exclusive { join } => queue.upgrade(number, claim, join, change),
            Conversion::Shared { token } => Ok(queue.downgrade(number, token)),
            Conversion::Raise { to } => queue.raise(number, claim, to, change),
        }))
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        // A claim that waits stays as long as the process, and needs nothing.
        holds.then(|| Arc::<Memory>::clone(&self.memory) as Arc<dyn Session>)
    }
}
