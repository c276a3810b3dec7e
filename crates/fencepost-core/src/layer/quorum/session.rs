//! Renewal at all nodes.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use super::{Job, Shared, gather};
use crate::backend::{Reply, Session, Stake};
use crate::claim::Claim;
use crate::error::Result;
use crate::life::{Life, margin};

/// What is renewed together at one node.
type Round = (Arc<dyn Session>, Vec<Arc<Claim>>);

impl Session for Shared {
    fn id(&self) -> u64 {
        self.id
    }

    fn life(&self) -> &Arc<Life> {
        &self.life
    }

    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let sent = self.clock.now();
            let mut rounds: BTreeMap<(usize, u64), Round> = BTreeMap::new();
            let mut kept = Vec::with_capacity(due.len());
            for claim in due {
                let Some(seats) = self.held().get(&claim.id).cloned() else { continue };
                let ttl = claim.ttl();
                let mut lives = Vec::with_capacity(self.nodes.len());
                poll_fn(|cx| {
                    let mut seats = seats.lock().unwrap_or_else(PoisonError::into_inner);
                    for (number, seat) in seats.iter_mut().enumerate() {
                        // Those who were slower than the majority have answered by now.
                        seat.poll(cx);
                        lives.push(Arc::clone(&seat.claim.life));
                        seat.claim.set_ttl(ttl);
                        if let Some(Stake { claim, session }) = seat.stake() {
                            let key = (number, session.id());
                            rounds.entry(key).or_insert_with(|| (session, Vec::new())).1.push(claim);
                        }
                    }
                    Poll::Ready(())
                })
                .await;
                kept.push((claim, ttl, lives));
            }
            let jobs = rounds
                .values()
                .map(|(session, claims)| Box::pin(session.keep(claims)) as Job<'_, Result<()>>);
            gather(&self.clock, self.patience, jobs.collect(), |_| false).await;
            let mut failed = false;
            for (claim, ttl, lives) in kept {
                // A majority of all nodes, not of those that once granted it.
                let until = sent + (ttl - margin(ttl));
                let confirmed = lives.iter().filter(|life| life.until() >= until).count();
                if confirmed >= self.need {
                    claim.confirm(sent, ttl);
                } else {
                    failed = true;
                }
            }
            if failed { Err(self.unreachable().unknown()) } else { Ok(()) }
        })
    }
}
