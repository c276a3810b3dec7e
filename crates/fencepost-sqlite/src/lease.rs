//! Leases whose end stands in their row: fixed ones, detached ones, and those that change their length.

use std::time::Duration;

use fencepost_core::{Claim, Loss, Want};
use rusqlite::{Connection, params};

use crate::census::{Census, Now, Standing};
use crate::error::Trouble;
use crate::row::{self, Row, integer};

/// Cuts a grant loose from its process: from now on it ends `ttl` after now. `false`: there is no such grant.
pub(crate) fn detach(
    db: &Connection,
    census: &Census<'_>,
    resource: &str,
    id: &[u8; 16],
    ttl: Duration,
) -> Result<bool, Trouble> {
    match row::find(db, resource, id)? {
        Some(row) if row.holds() && !row.is_evicted() => {
            // Neither pinned nor fixed any more.
            let sql =
                "UPDATE line SET process = NULL, flags = 0, missing = NULL WHERE resource = ?1 AND seq = ?2";
            db.prepare_cached(sql)?.execute(params![resource, row.seq])?;
            set_end(db, census, resource, row.seq, ttl, 0)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Makes a detached lease end `ttl` after now at the earliest and returns its token; `None` if it has ended, was evicted, or has
/// another mode.
pub(crate) fn extend(
    db: &Connection,
    census: &Census<'_>,
    want: &Want,
    id: &[u8; 16],
    ttl: Duration,
) -> Result<Option<u64>, Trouble> {
    let resource = want.name.as_str();
    match row::find(db, resource, id)?.filter(|row| row.mode == want.mode) {
        Some(row) if row.process.is_none() && !row.is_evicted() && census.detached_lives(&row) => {
            set_end(db, census, resource, row.seq, ttl, census.end_of(&row))?;
            Ok(Some(row.token))
        }
        _ => Ok(None),
    }
}

/// What became of a lease.
pub(crate) enum Kept {
    /// It now runs that long: from the request on if its end is in the row, else from the time in the side file.
    For {
        ttl: Duration,
        in_row: bool,
    },
    Lost(Loss),
}

/// Renews a lease in its row.
pub(crate) fn keep(db: &Connection, census: &Census<'_>, claim: &Claim) -> Result<Kept, Trouble> {
    let resource = claim.want().name.as_str();
    let id = claim.id.as_u128().to_be_bytes();
    let Some(row) = row::find(db, resource, &id)? else { return Ok(Kept::Lost(Loss::Deleted)) };
    if row.is_evicted() {
        return Ok(Kept::Lost(Loss::Evicted));
    }
    let ttl = claim.ttl();
    // Never shorter than before: somebody may have been told of the longer one.
    if row.process.is_none() {
        if !census.detached_lives(&row) {
            return Ok(Kept::Lost(Loss::Expired));
        }
        set_end(db, census, resource, row.seq, ttl, census.end_of(&row))?;
    } else {
        if row.is_fixed() && row.until.is_some_and(|until| until <= census.now.boot) {
            return Ok(Kept::Lost(Loss::Expired));
        }
        let until =
            row.is_fixed().then(|| census.now.boot.saturating_add(nanos(ttl)).max(row.until.unwrap_or(0)));
        let sql = "UPDATE line SET ttl = max(ttl, ?3), until = ?4 WHERE resource = ?1 AND seq = ?2";
        db.prepare_cached(sql)?.execute(params![
            resource,
            row.seq,
            integer(nanos(ttl)),
            until.map(integer)
        ])?;
    }
    Ok(Kept::For { ttl, in_row: row.process.is_none() || row.is_fixed() })
}

/// Writes the end of a lease, `least` or later, on the clock of this boot, and on the wall clock for after a restart.
fn set_end(
    db: &Connection,
    census: &Census<'_>,
    resource: &str,
    seq: i64,
    ttl: Duration,
    least: u64,
) -> Result<(), Trouble> {
    let Now { boot, wall } = census.now;
    let until = boot.saturating_add(nanos(ttl)).max(least);
    let on_the_wall = wall.saturating_add((until - boot) / 1_000);
    let sql = "UPDATE line SET ttl = ?3, until = ?4, wall = ?5, boot = ?6 WHERE resource = ?1 AND seq = ?2";
    let values =
        params![resource, seq, integer(nanos(ttl)), integer(until), integer(on_the_wall), census.boot];
    db.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

impl Census<'_> {
    fn detached_lives(&self, row: &Row) -> bool {
        matches!(self.judge_detached(row), Standing::Alive { .. })
    }

    /// When a detached lease ends, on the clock of this boot.
    fn end_of(&self, row: &Row) -> u64 {
        match self.judge_detached(row) {
            Standing::Alive { until, .. } => until.unwrap_or(0),
            Standing::Dead => 0,
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
