// A complete engine over a `HashMap`: exclusive locks with leases, for the tasks of one process. Waiters poll.

use fencepost_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Entry, Found, How, Leave, Left, Loss, Moment, Name,
    Operator, Place, Reply, Request, Result, Session, Token,
};

/// How long a waiter pauses between two attempts.
const POLL: Duration = Duration::from_millis(5);

/// A name in the table.
#[derive(Default)]
struct Row {
    last_token: u64,
    /// The id of the holder's claim, and the end of its lease.
    holder: Option<(ClaimId, Moment)>,
}

/// The engine: one table of names.
pub(crate) struct Toy {
    rows: Mutex<HashMap<Name, Row>>,
}

impl Toy {
    /// Makes an empty engine.
    pub(crate) fn open() -> Arc<Toy> {
        Arc::new(Toy { rows: Mutex::default() })
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<Name, Row>> {
        self.rows.lock()
    }

    /// Makes the claim's lease last for another `ttl`. Never creates one, and never revives one that has ended: then it returns false.
    fn extend(&self, claim: &Claim, now: Moment, ttl: Duration) -> bool {
        let mut rows = self.rows();
        match rows.get_mut(&claim.want().name).and_then(|row| row.holder.as_mut()) {
            Some((id, end)) if *id == claim.id && *end > now => {
                *end = (*end).max(now + ttl);
                true
            }
            _ => false,
        }
    }
}

impl Backend for Toy {
    fn capabilities(&self) -> Capabilities {
        let mut toy = Capabilities::full("toy");
        (toy.fair, toy.barging, toy.shared, toy.replicas) = (false, false, false, false);
        (toy.permits, toy.stored_permits) = (false, false);
        (toy.detach, toy.inspect, toy.evict, toy.history) = (false, false, false, false);
        toy.upgrade = false;
        toy
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Entry::new(Arc::clone(&claim), how, ToyPlace { toy: self, claim })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Toy {}

impl Session for Toy {
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        for claim in due {
            // Both are read once and before the request is sent, because the user may change the length meanwhile.
            let (now, ttl) = (claim.runtime.clock().now(), claim.ttl());
            // The claim is told without the table, because that may wake a task which asks at once.
            if self.extend(claim, now, ttl) {
                claim.confirm(now, ttl);
            } else {
                claim.validity.end(Loss::Deleted);
            }
        }
        Reply::ready(Ok(()))
    }
}

/// One claim at the engine.
struct ToyPlace {
    toy: Arc<Toy>,
    claim: Arc<Claim>,
}

impl Place for ToyPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let claim = &self.claim;
        let (now, ttl) = (claim.runtime.clock().now(), claim.ttl());
        let mut rows = self.toy.rows();
        let row = rows.entry(claim.want().name.clone()).or_default();
        match row.holder.filter(|(_, end)| *end > now) {
            Some((id, _)) if id == claim.id => {} // the reply to an earlier request was lost
            Some(_) => return Request::ready(Ok(Attempt::Blocked { next_attempt: Some(now + POLL) })),
            None => row.last_token += 1,
        }
        row.holder = Some((claim.id, now + ttl));
        let token = Token::new(row.last_token);
        drop(rows);
        claim.confirm(now, ttl);
        Request::ready(Ok(Attempt::Granted(token)))
    }

    fn poll_news(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending // no notification: core's timer makes the next request
    }

    fn leave(&mut self, _: Leave, _may_have_left: bool) -> Request<'_, Left> {
        let now = self.claim.runtime.clock().now();
        let mut rows = self.toy.rows();
        let row = rows.entry(self.claim.want().name.clone()).or_default();
        let ours = row.holder.take_if(|(id, _)| *id == self.claim.id);
        let found = if ours.is_some_and(|(_, end)| end > now) { Found::Valid } else { Found::Missing };
        Request::ready(Ok(found.into()))
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        Some(Arc::<Toy>::clone(&self.toy))
    }
}
