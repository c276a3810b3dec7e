//! Renewal at all nodes.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;

use fencepost_core::{Claim, Clock, Renewal, Reply, Result, Session, State, margin};

use super::node_claim::NodeClaim;
use super::{GRACE, Job, NodeClaims, Shared, gather};

/// The claims that one node renews together.
type Round = (Arc<dyn Session>, Vec<Arc<Claim>>);

/// Votes of nodes that do not hold it are asked for again for so many claims by one round: each takes a command.
const AGAIN: usize = 1_024;

impl Session for Shared {
    fn id(&self) -> u64 {
        self.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let sent = self.clock.now();
            let mut rounds: BTreeMap<(usize, u64), Round> = BTreeMap::new();
            let mut kept = Vec::with_capacity(due.len());
            let (mut asking, mut slow) = (Vec::new(), Vec::new());
            for outer in due {
                let Some((seats, token)) = self.held().get(&outer.number).cloned() else { continue };
                let ttl = outer.ttl();
                let (mut asks, mut away) = (false, false);
                poll_fn(|cx| {
                    let mut seats = locked(&seats);
                    // Those who were slower than the majority have answered by now.
                    if !seats.iter().any(NodeClaim::is_leaving) {
                        seats.iter_mut().for_each(|seat| _ = seat.poll(cx));
                        away = seats.iter().any(NodeClaim::is_away);
                    }
                    let now = self.clock.now();
                    for (number, seat) in seats.iter_mut().enumerate() {
                        seat.claim.set_ttl(ttl);
                        if seat.lacks_vote(now) {
                            let held = !matches!(outer.validity.state(now), State::Lost(_));
                            if held && asking.len() < AGAIN && seat.node.is_worth(now) {
                                seat.ask_to_regain(outer, token);
                                asks = true;
                            }
                        } else if let Some(Renewal { claim, session }) = seat.renewal()
                            && seat.counts(outer, now)
                        {
                            let key = (number, session.id());
                            rounds.entry(key).or_insert_with(|| (session, Vec::new())).1.push(claim);
                        }
                    }
                    Poll::Ready(())
                })
                .await;
                if asks {
                    asking.push((outer, Arc::clone(&seats)));
                } else if away {
                    slow.push((outer, Arc::clone(&seats)));
                }
                kept.push((outer, ttl, seats));
            }
            let rounds = rounds
                .values()
                .map(|(session, claims)| Box::pin(session.renew(claims)) as Job<'_, Result<()>>);
            let needed = rounds.len() + asking.len();
            let votes = asking.iter().chain(&slow).map(|(outer, seats)| {
                let taken = async move {
                    taken_in(&self.clock, outer, seats).await;
                    Ok(())
                };
                Box::pin(taken) as Job<'_, Result<()>>
            });
            // A node that owes an answer from before is not waited for.
            let rest = |answers: &[Option<_>]| answers[..needed].iter().all(Option::is_some).then_some(GRACE);
            gather(&self.clock, self.patience, rounds.chain(votes).collect(), rest).await;
            let (now, mut failed) = (self.clock.now(), false);
            for (claim, ttl, seats) in kept {
                // A majority of all nodes, not of those that once granted it.
                let until = sent + (ttl - margin(ttl));
                let mut seats = locked(&seats);
                let confirmed = seats
                    .iter_mut()
                    .filter_map(|seat| seat.counts(claim, now).then(|| seat.claim.validity.until()))
                    .filter(|end| *end >= until)
                    .count();
                if confirmed >= self.need_of(claim.want().mode) {
                    claim.confirm(sent, ttl);
                } else {
                    failed = true;
                }
            }
            if failed { Err(self.unreachable().unknown()) } else { Ok(()) }
        })
    }
}

/// Ready when no seat waits for an answer any more, or the claim is being left. A vote counts as soon as it is there: until then the
/// claim is as weak as without it, and another node of the round may hang for as long as it is waited for.
pub(crate) async fn taken_in(clock: &Clock, outer: &Claim, seats: &NodeClaims) {
    poll_fn(|cx| {
        let mut seats = locked(seats);
        if seats.iter().any(NodeClaim::is_leaving) {
            return Poll::Ready(());
        }
        let mut away = false;
        for seat in seats.iter_mut() {
            seat.poll(cx);
            seat.counts(outer, clock.now());
            away |= seat.is_away();
        }
        if away { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

fn locked(seats: &NodeClaims) -> MutexGuard<'_, Vec<NodeClaim>> {
    seats.lock()
}
