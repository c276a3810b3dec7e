//! Claims of a quorum that this node refused: they are told when it is worth asking again, and handed nothing.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::wakers::Wakers;
use crate::backend::admission::Held;
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;

/// How long a refused claim is remembered. A claim that still waits asks again earlier.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// The refused claims, the oldest first.
#[derive(Default)]
pub(super) struct Voters(Vec<Voter>);

struct Voter {
    claim: Arc<Claim>,
    since: Moment,
    /// Forgotten then, unless it asks again.
    until: Moment,
    waker: Option<Waker>,
    /// It may be free.
    hinted: bool,
}

impl Voters {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.0.iter().map(|voter| &voter.claim)
    }

    fn find(&mut self, id: ClaimId) -> Option<&mut Voter> {
        self.0.iter_mut().find(|voter| voter.claim.id == id)
    }

    pub(super) fn refuse(&mut self, claim: &Arc<Claim>, now: Moment) {
        let until = now + FORGOTTEN;
        if let Some(voter) = self.find(claim.id) {
            voter.until = until;
            voter.hinted = false;
            return;
        }
        let at = self.0.partition_point(|voter| order(&voter.claim) <= order(claim));
        let voter = Voter { claim: Arc::clone(claim), since: now, until, waker: None, hinted: false };
        self.0.insert(at, voter);
    }

    /// Takes it out; says whether it was there.
    pub(super) fn forget(&mut self, id: ClaimId) -> bool {
        let before = self.0.len();
        self.0.retain(|voter| voter.claim.id != id);
        self.0.len() < before
    }

    /// Tells the oldest who fit beside what is held.
    pub(super) fn hint(&mut self, now: Moment, mut held: Held, wakers: &mut Wakers) {
        self.0.retain(|voter| voter.until > now);
        for voter in &mut self.0 {
            // A claim that fits is granted, so a claim that does not fit blocks no other.
            if !held.admit(voter.claim.want().mode) {
                continue;
            }
            // The hint stays until the claim asks again; without it a claim that is woken would sleep on.
            voter.hinted = true;
            wakers.push(voter.waker.take());
        }
    }

    /// Pending: its waker is kept. Ready: ask again.
    pub(super) fn poll_hint(&mut self, id: ClaimId, cx: &mut Context<'_>) -> Poll<()> {
        match self.find(id) {
            Some(voter) if !voter.hinted => {
                voter.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    pub(super) fn infos(&self) -> impl Iterator<Item = ClaimInfo> + '_ {
        let asks = |voter: &&Voter| voter.until > voter.claim.runtime.clock().now();
        self.0.iter().filter(asks).map(|voter| {
            let clock = voter.claim.runtime.clock();
            let age = clock.now().since(voter.since);
            ClaimInfo {
                since_micros: clock.wall_micros().saturating_sub(age.as_micros() as u64),
                age,
                ..voter.claim.info()
            }
        })
    }
}

pub(super) fn order(claim: &Claim) -> u64 {
    claim.vote.as_ref().map_or(0, |vote| vote.order)
}
