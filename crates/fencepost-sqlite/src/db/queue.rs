//! The line before a resource: joining it, being granted, releasing it. Each function is the body of one write transaction.
//!
//! The rule is that of [`fencepost_core::backend::admission::admit`], applied while the rows are being read: who lives is asked of heartbeat
//! files, so it is asked only of those on whom the answer depends, holders and the waiters in front. A test holds this
//! against `admit` itself.

mod leave;
mod limit;
mod state;
pub(crate) mod upgrade;

pub(crate) use leave::{Withdrawal, next, withdraw};
pub(crate) use state::state;

use fencepost_core::Mode;
use fencepost_core::backend::admission::Held;
use rusqlite::Connection;

use crate::db::idle;
use crate::db::rows::{self, NO_LEASE, NewRow, Row, columns};
use crate::error::Failure;
use crate::process::heartbeat_file::ClientKey;
use crate::process::liveness::{Liveness, LivenessCheck, Repair};

/// The numbers between two waiters: rows of claims that pass the second one.
const GAP: i64 = 1 << 16;

/// One claim's request.
pub(crate) struct Request<'a> {
    pub(crate) resource: &'a str,
    pub(crate) id: [u8; 16],
    pub(crate) mode: Mode,
    pub(crate) process: ClientKey,
    pub(crate) ttl: u64,
    pub(crate) join: bool,
    pub(crate) unfair: bool,
    pub(crate) pinned: bool,
    /// The lease is not renewed: it ends `ttl` after `sent`.
    pub(crate) fixed: bool,
    /// When this request was made, before anything was done for it.
    pub(crate) sent: u64,
    pub(crate) record: &'a str,
    /// Its seq in the queue, once it has one. It is gone if there is no row any more.
    pub(crate) seq: Option<i64>,
}

/// The outcome of an acquisition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Granted {
        seq: i64,
        token: u64,
    },
    /// `seq` is `None` if the claim did not want to wait.
    /// `blockers` are the claims that it waits for: the holders, or the nearest waiter. Each has the time at which it is dead unless
    /// it is renewed.
    Blocked {
        seq: Option<i64>,
        blockers: Vec<(Row, Option<u64>)>,
    },
    Gone,
    /// It asks for more permits than this limit.
    AboveLimit(u32),
}

/// Asks for the resource, joining the line if it must wait. Also says whose turn it is, if somebody was found dead or passed, and
/// whose row was removed because the claim asks for more permits than the limit: they are to be woken.
///
/// Waiters in front that could go, but have not collected their grants yet, are granted first, in their order: so the order
/// of tokens is that of arrival, and no holder ever stands behind a waiter. A claim that is unfair gets a row before the waiters that it
/// passes. If the numbers before a waiter are used up, the claim joins the line instead.
pub(crate) fn attempt(
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    request: &Request<'_>,
) -> Result<(Outcome, Vec<ClaimRef>), Failure> {
    let mut scan = Scan::new(request.resource, Some(request.id), true, request.join);
    let (outcome, mut to_wake) = answer(&mut scan, db, liveness, request)?;
    to_wake.append(&mut scan.impossible);
    Ok((outcome, to_wake))
}

fn answer(
    scan: &mut Scan<'_>,
    db: &Connection,
    liveness: &mut LivenessCheck<'_>,
    request: &Request<'_>,
) -> Result<(Outcome, Vec<ClaimRef>), Failure> {
    let mut admitted = Vec::new();
    scan.run(db, liveness, |held, waiter| {
        let fits = held.fits(waiter.mode);
        if fits {
            admitted.push(waiter.clone());
        }
        fits
    })?;
    scan.repair(db, liveness)?;
    if let Some(other) = scan.own.as_ref().filter(|row| row.process != Some(request.process)) {
        // A claim of another client has used the id before. The row ends with that client, or with the detached lease that it has become,
        // whatever this client renews.
        if liveness.check(other)? == Liveness::Dead {
            rows::delete(db, request.resource, other.seq, &other.id)?;
        }
        // This look includes that row and notes in it if its side file is missing, because perhaps no other claim asks.
        return Ok((Outcome::Gone, next(db, liveness, request.resource)?));
    }
    if let Some(own) = &scan.own
        && own.holds()
    {
        // Its end may be in the row already, and a lease that begins now would last longer.
        if own.is_evicted() {
            return Ok((Outcome::Gone, Vec::new()));
        }
        // A waiter that was granted beside a later claim is a holder from now on. Asked again, a fixed lease ends later for others too.
        let until = own.until.max(end_of(request));
        // Another claim with this id may go by a longer lease.
        let ttl = request.ttl.max(own.ttl);
        let asked = rows::Grant { ttl, ..grant_of(request, own, own.token, until, liveness.now.wall) };
        let is = (own.ttl, own.is_pinned(), own.is_fixed(), own.until);
        if is != (ttl, asked.pinned, asked.fixed, until) {
            rows::grant(db, request.resource, &asked)?;
        }
        return Ok((Outcome::Granted { seq: own.seq, token: own.token }, Vec::new()));
    }
    if request.seq.is_some() && scan.own.is_none() {
        return Ok((Outcome::Gone, Vec::new()));
    }
    let mode = scan.limited(db, request.mode)?;
    let to_wake = || {
        let admitted = admitted.iter().filter_map(Row::claim_ref);
        admitted.chain(scan.upgrader()).collect()
    };
    if !mode.is_possible() {
        return scan.refuse(db, request).map(|outcome| (outcome, to_wake()));
    }
    let passes = request.unfair && scan.own.is_none() && scan.gap.is_some();
    if scan.blocked && !passes || !scan.held.fits(mode) {
        let seq = match &scan.own {
            Some(own) => Some(own.seq),
            None if request.join => Some(insert(db, liveness, request, scan.last_seq + GAP, 0)?),
            None => None,
        };
        let to_wake = if scan.dead.is_empty() { Vec::new() } else { to_wake() };
        let blockers = std::mem::take(&mut scan.blockers);
        return Ok((Outcome::Blocked { seq, blockers }, to_wake));
    }
    let mut token = scan.greatest_token(db)?;
    let mut next_token = || {
        token = liveness.now.wall.max(token + 1);
        token
    };
    for row in &admitted {
        // Nobody works under the grant before its claim asks, so the row lives as a waiter's until then.
        let (token, ttl, since) = (next_token(), NO_LEASE, liveness.now.wall);
        let (pinned, fixed) = (false, row.is_fixed());
        let grant = rows::Grant { seq: row.seq, token, ttl, until: None, pinned, fixed, since };
        rows::grant(db, request.resource, &grant)?;
    }
    let token = next_token();
    rows::set_last_token(db, request.resource, token, scan.last_token.is_some())?;
    let seq = match &scan.own {
        Some(own) => {
            let grant = grant_of(request, own, token, end_of(request), liveness.now.wall);
            rows::grant(db, request.resource, &grant)?;
            own.seq
        }
        None => insert(db, liveness, request, scan.gap.unwrap_or(scan.last_seq + 1), token)?,
    };
    Ok((Outcome::Granted { seq, token }, to_wake()))
}

/// Asks for a resource that is free, with nobody in the queue: one statement, which is a transaction by itself. `None`: it may be
/// otherwise, or new, or the wall clock has been set back below the last token; [`attempt`] knows.
pub(crate) fn grant_if_free(
    db: &Connection,
    request: &Request<'_>,
    wall: u64,
) -> rusqlite::Result<Option<Outcome>> {
    let sits = request.seq.is_none() && rows::grant_if_free(db, &new_row(request, wall, 0, wall))?;
    Ok(sits.then_some(Outcome::Granted { seq: 0, token: wall }))
}

/// A waiter that may go, and where to ring for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClaimRef {
    pub(crate) id: [u8; 16],
    pub(crate) process: ClientKey,
}

impl Row {
    fn claim_ref(&self) -> Option<ClaimRef> {
        Some(ClaimRef { id: self.id, process: self.process? })
    }
}

fn grant_of(request: &Request<'_>, own: &Row, token: u64, until: Option<u64>, since: u64) -> rows::Grant {
    // If another claim with this id is renewed, others must not go by the end in the row, because the renewal leaves that as it is.
    let fixed = request.fixed && own.is_fixed();
    rows::Grant { seq: own.seq, token, ttl: request.ttl, until, pinned: request.pinned, fixed, since }
}

fn end_of(request: &Request<'_>) -> Option<u64> {
    request.fixed.then(|| request.sent.saturating_add(request.ttl))
}

fn insert(
    db: &Connection,
    liveness: &LivenessCheck<'_>,
    request: &Request<'_>,
    seq: i64,
    token: u64,
) -> Result<i64, Failure> {
    rows::insert(db, &new_row(request, liveness.now.wall, seq, token))?;
    Ok(seq)
}

fn new_row<'a>(request: &Request<'a>, wall: u64, seq: i64, token: u64) -> NewRow<'a> {
    NewRow {
        resource: request.resource,
        seq,
        token,
        id: request.id,
        mode: request.mode,
        process: request.process,
        ttl: request.ttl,
        pinned: request.pinned,
        fixed: request.fixed,
        until: if token == 0 { None } else { end_of(request) },
        since: wall,
        record: request.record,
    }
}

/// One reading of a line from its front, in which the dead are noted.
struct Scan<'a> {
    resource: &'a str,
    /// The claim whose row is not counted.
    id: Option<[u8; 16]>,
    /// Nothing behind that row matters.
    stop_at_own: bool,
    /// Read on behind a waiter that may not go: the claim's own row may stand there, or is to be put at the end.
    read_all: bool,
    own: Option<Row>,
    held: Held,
    /// The holder that waits to be the only one.
    upgrading: Option<ClaimRef>,
    /// A living waiter in front cannot go yet: nobody behind it may.
    blocked: bool,
    /// The stored limit of permits, once it was read.
    limit: Option<Option<u32>>,
    /// A free number before that waiter.
    gap: Option<i64>,
    last_seq: i64,
    last_token: Option<u64>,
    /// The claims that block this one: the holders, or the nearest waiter.
    blockers: Vec<(Row, Option<u64>)>,
    /// Rows to remove: those of the dead, and the impossible ones.
    dead: Vec<(i64, [u8; 16])>,
    /// Waiters that ask for more permits than the limit.
    impossible: Vec<ClaimRef>,
    repairs: Vec<(i64, Repair)>,
}

impl<'a> Scan<'a> {
    fn new(resource: &'a str, id: Option<[u8; 16]>, stop_at_own: bool, read_all: bool) -> Scan<'a> {
        Scan {
            resource,
            id,
            stop_at_own,
            read_all,
            own: None,
            held: Held::default(),
            upgrading: None,
            blocked: false,
            limit: None,
            gap: None,
            last_seq: 0,
            last_token: None,
            blockers: Vec::new(),
            dead: Vec::new(),
            impossible: Vec::new(),
            repairs: Vec::new(),
        }
    }

    /// Returns the token above which the next one is: the last one of the resource, or of all resources whose rows were removed.
    fn greatest_token(&self, db: &Connection) -> rusqlite::Result<u64> {
        self.last_token.map_or_else(|| idle::greatest_removed(db), Ok)
    }

    /// Reads up to the claim's own row, or to the end if it has none. `goes` is asked for each living waiter in front
    /// whether it may go; after the first that may not, rows are only counted.
    ///
    /// Holders always stand before living waiters: see [`attempt`].
    fn run(
        &mut self,
        db: &Connection,
        liveness: &mut LivenessCheck<'_>,
        mut admit: impl FnMut(&Held, &Row) -> bool,
    ) -> Result<(), Failure> {
        let mut statement = db.prepare_cached(SELECT_LINE)?;
        let mut rows = statement.query([self.resource])?;
        while let Some(row) = rows.next()? {
            self.last_token = self.last_token.or(Row::last_token(row)?);
            let Some(mut row) = Row::read(row)? else { continue };
            let before = std::mem::replace(&mut self.last_seq, row.seq);
            if Some(row.id) == self.id {
                self.own = Some(row);
                if self.stop_at_own {
                    break;
                }
                continue;
            }
            if self.blocked {
                self.blockers = vec![(row, None)];
                continue;
            }
            let until = match liveness.check(&row)? {
                Liveness::Dead => {
                    self.dead.push((row.seq, row.id));
                    continue;
                }
                Liveness::Alive { until, repair } => {
                    self.repairs.extend(repair.map(|repair| (row.seq, repair)));
                    until
                }
            };
            if !row.holds() {
                row.mode = self.limited(db, row.mode)?;
                if !row.mode.is_possible() {
                    // It would block the line for good. A holder never stands behind its row, so the row goes. Woken, it finds that.
                    self.dead.push((row.seq, row.id));
                    self.impossible.extend(row.claim_ref());
                    continue;
                }
            }
            if !row.holds() {
                if !admit(&self.held, &row) {
                    self.blocked = true;
                    self.gap = Some(before + 1).filter(|free| *free < row.seq);
                    if !self.read_all {
                        break;
                    }
                    self.blockers = vec![(row, until)];
                    continue;
                }
                self.blockers.clear();
            } else if row.is_upgrading() {
                self.upgrading = row.claim_ref();
            }
            self.held.add(row.mode);
            self.blockers.push((row, until));
        }
        Ok(())
    }

    /// Removes the rows of the dead and the impossible ones, and writes what later readers have to know.
    fn repair(&self, db: &Connection, liveness: &LivenessCheck<'_>) -> Result<(), Failure> {
        for (seq, id) in &self.dead {
            rows::delete(db, self.resource, *seq, id)?;
        }
        for (seq, repair) in &self.repairs {
            match *repair {
                Repair::Missing(since) => rows::set_missing(db, self.resource, *seq, since)?,
                Repair::Until(until) => rows::set_until(db, self.resource, *seq, until, liveness.boot)?,
            }
        }
        Ok(())
    }
}

const SELECT_LINE: &str = concat!("SELECT ", columns!(), " FROM line WHERE resource = ?1 ORDER BY seq");

#[cfg(test)]
mod tests;
