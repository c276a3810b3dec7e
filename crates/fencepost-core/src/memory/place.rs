//! One place in a line, and the chains that places hang in.

use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::backend::claim::{Claim, ClaimId};
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;
use crate::token::Token;

/// No place: the end of a chain.
pub(super) const NONE: usize = usize::MAX;

/// A claim in line.
pub(super) struct Place {
    pub(super) id: ClaimId,
    pub(super) claim: Arc<Claim>,
    pub(super) standing: Standing,
    pub(super) before: usize,
    pub(super) after: usize,
    /// Since when it waits or holds.
    pub(super) since: Moment,
}

pub(super) enum Standing {
    Waiting { waker: Option<Waker> },
    Holding { token: Token, end: Moment, evicted: bool, detached: bool },
}

#[derive(Clone, Copy)]
/// Places in order, through one slab.
pub(super) struct Chain {
    pub(super) head: usize,
    pub(super) tail: usize,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { head: NONE, tail: NONE }
    }
}

impl Place {
    /// When its lease ends.
    pub(super) fn end(&self) -> Moment {
        match self.standing {
            Standing::Holding { end, .. } => end,
            Standing::Waiting { .. } => Moment::NEVER,
        }
    }

    /// As operators see it.
    pub(super) fn info(&self) -> ClaimInfo {
        let clock = self.claim.runtime.clock();
        let age = clock.now().since(self.since);
        let (token, end, evicted, detached) = match self.standing {
            Standing::Holding { token, end, evicted, detached } => {
                (Some(token), Some(end), evicted, detached)
            }
            Standing::Waiting { .. } => (None, None, false, false),
        };
        ClaimInfo {
            holder: (*self.claim.holder).clone(),
            mode: self.claim.want().mode,
            token,
            since_micros: clock.wall_micros().saturating_sub(age.as_micros() as u64),
            age,
            expires_in: end.map(|end| end.since(clock.now())),
            reason: self.claim.reason.as_deref().map(str::to_owned),
            evicted,
            detached,
            endless: false,
            from_arrival: false,
        }
    }
}

/// Appends the place.
pub(super) fn push(places: &mut Slab<Place>, chain: &mut Chain, key: usize) {
    places[key].before = chain.tail;
    places[key].after = NONE;
    match places.get_mut(chain.tail) {
        Some(tail) => tail.after = key,
        None => chain.head = key,
    }
    chain.tail = key;
}

/// Takes the place out.
pub(super) fn unlink(places: &mut Slab<Place>, chain: &mut Chain, key: usize) {
    let (before, after) = (places[key].before, places[key].after);
    match places.get_mut(before) {
        Some(place) => place.after = after,
        None => chain.head = after,
    }
    match places.get_mut(after) {
        Some(place) => place.before = before,
        None => chain.tail = before,
    }
}
