//! Leases whose end stands in their row: fixed ones, detached ones, and those that change their length.

use std::time::Duration;

use fencepost_core::{Claim, Loss, Want};
use rusqlite::{Connection, params};

use crate::db::rows::{self, Row, integer};
use crate::error::Failure;
use crate::process::liveness::{Liveness, LivenessCheck, Now};

/// Cuts a grant loose from its process: from now on it ends `ttl` after now. `false`: there is no such grant.
pub(crate) fn detach(
    db: &Connection,
    liveness: &LivenessCheck<'_>,
    resource: &str,
    id: &[u8; 16],
    ttl: Duration,
) -> Result<bool, Failure> {
    match rows::find(db, resource, id)? {
        Some(row) if row.holds() && !row.is_evicted() => {
            // Never shorter than before: somebody may have been told of the longer lease.
            let least = if row.process.is_none() { liveness.end_of(&row) } else { row.until.unwrap_or(0) };
            // Neither pinned nor fixed any more.
            let sql = "UPDATE line SET process = NULL, mode = CASE WHEN flags & 8 THEN 1 ELSE mode END, flags = 0, \
                 missing = NULL WHERE resource = ?1 AND seq = ?2";
            db.prepare_cached(sql)?.execute(params![resource, row.seq])?;
            set_end(db, liveness, resource, row.seq, ttl, least)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Makes a detached lease end `ttl` after now at the earliest and returns its token; `None` if it has ended, was evicted, or has
/// another mode.
pub(crate) fn extend(
    db: &Connection,
    liveness: &LivenessCheck<'_>,
    want: &Want,
    id: &[u8; 16],
    ttl: Duration,
) -> Result<Option<u64>, Failure> {
    let resource = want.name.as_str();
    match rows::find(db, resource, id)?.filter(|row| row.mode == want.mode) {
        Some(row) if row.process.is_none() && !row.is_evicted() && liveness.detached_lives(&row) => {
            set_end(db, liveness, resource, row.seq, ttl, liveness.end_of(&row))?;
            Ok(Some(row.token))
        }
        _ => Ok(None),
    }
}

/// The outcome of a renewal.
pub(crate) enum Renewed {
    /// It now runs that long: from the request on if its end is in the row, else from the time in the side file.
    For {
        ttl: Duration,
        in_row: bool,
    },
    Lost(Loss),
}

/// Renews a lease in its row.
pub(crate) fn keep(db: &Connection, liveness: &LivenessCheck<'_>, claim: &Claim) -> Result<Renewed, Failure> {
    let resource = claim.want().name.as_str();
    let id = claim.id.as_u128().to_be_bytes();
    let Some(row) = rows::find(db, resource, &id)? else { return Ok(Renewed::Lost(Loss::Deleted)) };
    if row.is_evicted() {
        return Ok(Renewed::Lost(Loss::Evicted));
    }
    let ttl = claim.ttl();
    // Never shorter than before: somebody may have been told of the longer one.
    if row.process.is_none() {
        if !liveness.detached_lives(&row) {
            return Ok(Renewed::Lost(Loss::Expired));
        }
        set_end(db, liveness, resource, row.seq, ttl, liveness.end_of(&row))?;
    } else {
        if row.is_fixed() && row.until.is_some_and(|until| until <= liveness.now.boot) {
            return Ok(Renewed::Lost(Loss::Expired));
        }
        let until =
            row.is_fixed().then(|| liveness.now.boot.saturating_add(nanos(ttl)).max(row.until.unwrap_or(0)));
        let sql = "UPDATE line SET ttl = max(ttl, ?3), until = ?4 WHERE resource = ?1 AND seq = ?2";
        db.prepare_cached(sql)?.execute(params![
            resource,
            row.seq,
            integer(nanos(ttl)),
            until.map(integer)
        ])?;
    }
    Ok(Renewed::For { ttl, in_row: row.process.is_none() || row.is_fixed() })
}

/// Writes the end of a lease, `least` or later, on the clock of this boot, and on the wall clock for after a restart.
fn set_end(
    db: &Connection,
    liveness: &LivenessCheck<'_>,
    resource: &str,
    seq: i64,
    ttl: Duration,
    least: u64,
) -> Result<(), Failure> {
    let Now { boot, wall } = liveness.now;
    let until = boot.saturating_add(nanos(ttl)).max(least);
    // After a restart the rest on the wall clock is cut to this length.
    let length = until - boot;
    let on_the_wall = wall.saturating_add(length / 1_000);
    let sql = "UPDATE line SET ttl = ?3, until = ?4, wall = ?5, boot = ?6 WHERE resource = ?1 AND seq = ?2";
    let values = params![resource, seq, integer(length), integer(until), integer(on_the_wall), liveness.boot];
    db.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

impl LivenessCheck<'_> {
    fn detached_lives(&self, row: &Row) -> bool {
        matches!(self.check_detached(row), Liveness::Alive { .. })
    }

    /// When a detached lease ends, on the clock of this boot.
    fn end_of(&self, row: &Row) -> u64 {
        match self.check_detached(row) {
            Liveness::Alive { until, .. } => until.unwrap_or(0),
            Liveness::Dead => 0,
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_core::testing::NoTasks;
    use fencepost_core::{ClaimId, Clock, HolderInfo, Mode, Name, Removed, Runtime};

    use super::*;
    use crate::db::queue::{self, Request};
    use crate::testing::{NOW, SECOND, TestDb};

    const TTL: Duration = Duration::from_secs(30);

    fn ask(test: &TestDb, request: &Request<'_>) {
        test.now(|db, liveness| queue::attempt(db, liveness, request));
    }

    fn cut_loose(test: &TestDb, id: u8) -> bool {
        test.now(|db, liveness| detach(db, liveness, "r", &[id; 16], TTL))
    }

    #[test]
    fn a_grant_is_detached_and_no_position_in_the_queue_and_nothing_that_was_evicted() {
        let test = TestDb::new();
        ask(&test, &test.request(1, Mode::Exclusive));
        ask(&test, &test.request(2, Mode::Exclusive));
        assert!(!cut_loose(&test, 2), "it waits");
        test.now(|db, _| rows::mark_evicted(db, "r", 1).map_err(Into::into));
        assert!(!cut_loose(&test, 1), "it is evicted");
        let test = TestDb::new();
        ask(&test, &test.request(1, Mode::Exclusive));
        assert!(cut_loose(&test, 1));
        assert!(!cut_loose(&test, 3), "it was never there");
    }

    #[test]
    fn a_detached_lease_that_has_ended_is_not_released() {
        for (after, removed) in [(29, Removed::Released), (30, Removed::Nothing)] {
            let test = TestDb::new();
            ask(&test, &test.request(1, Mode::Exclusive));
            assert!(cut_loose(&test, 1));
            let left =
                test.later(after * SECOND, |db, liveness| queue::withdraw(db, liveness, "r", &[1; 16], None));
            assert_eq!(left.removed, removed, "after {after} s");
        }
    }

    #[test]
    fn a_fixed_lease_has_its_end_in_its_row_once_it_is_granted() {
        let test = TestDb::new();
        for (id, end) in [(1, Some(NOW.boot + 30 * SECOND)), (2, None)] {
            ask(&test, &Request { fixed: true, ..test.request(id, Mode::Exclusive) });
            let row = test.now(|db, _| Ok(rows::find(db, "r", &[id; 16])?));
            assert_eq!(row.expect("it is there").until, end);
        }
    }

    /// Where the side file says how long it lives, a renewal counts from the time there.
    #[test]
    fn a_lease_ends_by_its_row_if_it_is_fixed_or_detached() {
        let test = TestDb::new();
        let kept = |id: u8| {
            let want = Want { name: Name::new("r").unwrap(), mode: Mode::Shared };
            let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(NoTasks));
            let id = ClaimId::from_u128(u128::from_be_bytes([id; 16]));
            let claim = Claim::new(id, want, TTL, HolderInfo::labelled("test"), runtime);
            match test.later(SECOND, |db, liveness| keep(db, liveness, &claim)) {
                Renewed::For { ttl, in_row } => (ttl, in_row),
                Renewed::Lost(why) => panic!("{why}"),
            }
        };
        let renewed = test.request(1, Mode::Shared);
        ask(&test, &renewed);
        ask(&test, &Request { id: [2; 16], fixed: true, ..renewed });
        assert_eq!(kept(1), (TTL, false));
        assert_eq!(kept(2), (TTL, true));
        assert!(cut_loose(&test, 1));
        assert_eq!(kept(1), (TTL, true));
    }

    /// After a restart its row says for how long it may run at most.
    #[test]
    fn a_shorter_extension_does_not_shorten_a_detached_lease_across_a_restart() {
        let test = TestDb::new();
        let hour = Duration::from_secs(3_600);
        ask(&test, &test.request(1, Mode::Exclusive));
        assert!(test.now(|db, liveness| detach(db, liveness, "r", &[1; 16], hour)));
        let want = Want { name: Name::new("r").unwrap(), mode: Mode::Exclusive };
        test.now(|db, liveness| extend(db, liveness, &want, &[1; 16], TTL)).expect("it is held");
        let row = test.now(|db, _| Ok(rows::find(db, "r", &[1; 16])?)).expect("it is held");
        let folder = test.files_folder();
        let restarted =
            LivenessCheck::new(&folder, crate::process::heartbeat_file::BootId([9; 16]), None, NOW);
        assert_eq!(restarted.end_of(&row), NOW.boot + 3_600 * SECOND);
    }
}
