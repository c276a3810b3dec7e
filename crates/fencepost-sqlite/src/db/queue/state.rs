//! The state of a queue, for the poll.

use rusqlite::Connection;

use super::leave::collect_fitting;
use super::{ClaimRef, Scan};
use crate::error::Failure;
use crate::process::liveness::LivenessCheck;

/// The state of a queue, as a poll reads it.
pub(crate) struct QueueState {
    /// The claims whose turn it is.
    pub(crate) to_wake: Vec<ClaimRef>,
    /// The holders of the resource. Some may not know it yet.
    pub(crate) holders: Vec<ClaimRef>,
    /// The first waiter whose turn it is not.
    pub(crate) first: Option<[u8; 16]>,
    /// There is something to repair, by [`next`](super::next).
    pub(crate) needs_repair: bool,
}

/// Reads the state of the queue. It changes nothing.
pub(crate) fn state(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    resource: &str,
) -> Result<QueueState, Failure> {
    let mut scan = Scan::new(resource, None, false, false);
    let mut to_wake = Vec::new();
    let mut first = None;
    scan.run(db, liveness, |held, waiter| {
        let fits = collect_fitting(held, waiter, &mut to_wake);
        if !fits {
            first = Some(waiter.id);
        }
        fits
    })?;
    let holders = scan.blockers.iter().filter(|(row, _)| row.holds());
    let holders = holders.filter_map(|(row, _)| row.claim_ref()).collect();
    Ok(QueueState {
        to_wake,
        holders,
        first,
        needs_repair: !scan.dead.is_empty() || !scan.repairs.is_empty(),
    })
}
