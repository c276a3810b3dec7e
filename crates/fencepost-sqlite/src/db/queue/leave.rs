//! Leaving the line, and whose turn it is then. Each function is the body of one write transaction.

use fencepost_core::Removed;
use fencepost_core::backend::admission::Held;
use rusqlite::Connection;

use super::{ClaimRef, Scan};
use crate::db::rows::{self, Row};
use crate::error::Failure;
use crate::process::liveness::{Liveness, LivenessCheck};

/// The outcome of a withdrawal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Withdrawal {
    /// The row that was there.
    pub(crate) removed: Removed,
    /// The claims whose turn it is now.
    pub(crate) next: Vec<ClaimRef>,
}

impl Withdrawal {
    pub(crate) const NOTHING: Withdrawal = Withdrawal { removed: Removed::Nothing, next: Vec::new() };
}

/// Takes one claim out of the line, and says whose turn it is.
pub(crate) fn withdraw(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    resource: &str,
    id: &[u8; 16],
    seq: Option<i64>,
) -> Result<Withdrawal, Failure> {
    let seq = match seq {
        Some(seq) => Some(seq),
        None => rows::find(db, resource, id)?.map(|row| row.seq),
    };
    let Some(seq) = seq else { return Ok(Withdrawal::NOTHING) };
    let mut scan = Scan::new(resource, Some(*id), false, false);
    let mut next = Vec::new();
    scan.run(db, liveness, |held, waiter| collect_fitting(held, waiter, &mut next))?;
    next.extend(scan.upgrader());
    next.append(&mut scan.impossible);
    let own = scan.own.as_ref();
    // A detached lease ends by itself, although nobody has removed its row yet.
    let ended =
        own.is_some_and(|own| own.process.is_none() && liveness.check_detached(own) == Liveness::Dead);
    let removed = match rows::delete(db, resource, seq, id)? {
        true if ended => Removed::Nothing,
        true if own.is_some_and(Row::holds) => Removed::Released,
        true => Removed::Withdrawn,
        false => Removed::Nothing,
    };
    scan.repair(db, liveness)?;
    Ok(Withdrawal { removed, next })
}

/// Returns the claims whose turn it is after a holder has died.
pub(crate) fn next(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    resource: &str,
) -> Result<Vec<ClaimRef>, Failure> {
    let mut scan = Scan::new(resource, None, false, false);
    let mut next = Vec::new();
    scan.run(db, liveness, |held, waiter| collect_fitting(held, waiter, &mut next))?;
    next.extend(scan.upgrader());
    next.append(&mut scan.impossible);
    scan.repair(db, liveness)?;
    Ok(next)
}

pub(super) fn collect_fitting(held: &Held, waiter: &Row, next: &mut Vec<ClaimRef>) -> bool {
    let fits = held.fits(waiter.mode);
    if fits {
        next.extend(waiter.claim_ref());
    }
    fits
}
