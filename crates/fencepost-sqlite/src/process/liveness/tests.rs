use fencepost_core::Mode;

use super::*;
use crate::testing::{NOW, SECOND, TestDb};

const TTL: u64 = 30 * SECOND;

fn row(test: &TestDb) -> Row {
    Row {
        seq: 1,
        token: 7,
        id: [1; 16],
        mode: Mode::Exclusive,
        process: Some(test.heartbeat.key()),
        ttl: TTL,
        flags: 0,
        until: None,
        boot: None,
        wall: None,
        missing: None,
    }
}

fn check(test: &TestDb, row: &Row, after: u64) -> Liveness {
    test.later(after, |_, liveness| Ok(liveness.check(row)?))
}

fn alive_until(end: u64) -> Liveness {
    Liveness::Alive { until: Some(end), repair: None }
}

#[test]
fn a_holder_lives_as_long_as_its_lease() {
    let test = TestDb::new();
    let row = row(&test);
    assert_eq!(check(&test, &row, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(check(&test, &row, TTL), Liveness::Dead);
    test.heartbeat.renew(NOW.boot + SECOND).unwrap();
    assert_eq!(check(&test, &row, TTL), alive_until(NOW.boot + TTL + SECOND));
}

#[test]
fn a_waiter_lives_three_seconds_without_a_renewal() {
    let test = TestDb::new();
    let row = Row { token: 0, ..row(&test) };
    assert_eq!(check(&test, &row, 3 * SECOND - 1), alive_until(NOW.boot + 3 * SECOND));
    assert_eq!(check(&test, &row, 3 * SECOND), Liveness::Dead);
}

#[test]
fn a_dead_process_holds_nothing_however_long_the_lease() {
    let test = TestDb::new();
    for row in [
        Row { process: Some(test.dead), ..row(&test) },
        Row { process: Some(test.dead), flags: 1, ..row(&test) },
        Row { process: Some(test.dead), flags: 4, until: Some(u64::MAX), ..row(&test) },
    ] {
        assert_eq!(check(&test, &row, 0), Liveness::Dead);
    }
}

/// The kernel drops every lock at a restart, so this is a process in a container that is shown a boot id of its own.
#[test]
fn a_locked_file_with_another_boot_id_is_of_a_process_that_lives() {
    let test = TestDb::new();
    let elsewhere = HeartbeatFile::create(
        &test.files_folder(),
        ClientKey::fresh().unwrap(),
        BootId([9; 16]),
        0,
        NOW.boot,
    )
    .unwrap();
    let row = Row { process: Some(elsewhere.key()), ..row(&test) };
    assert_eq!(check(&test, &row, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(check(&test, &row, TTL), Liveness::Dead);
    drop(elsewhere);
    assert_eq!(check(&test, &row, 0), Liveness::Dead);
}

#[test]
fn a_pinned_grant_lasts_until_its_lock_falls_or_it_is_over() {
    let test = TestDb::new();
    let pinned = Row { flags: 1, ..row(&test) };
    assert_eq!(check(&test, &pinned, 100 * TTL), Liveness::Alive { until: None, repair: None });
    let waiting = Row { token: 0, ..pinned.clone() };
    assert_eq!(check(&test, &waiting, 100 * TTL), Liveness::Dead, "a position in the queue is not pinned");
    crate::mark_over(&test.heartbeat.path()).unwrap();
    assert_eq!(check(&test, &pinned, 0), Liveness::Dead);
    assert_eq!(
        check(&test, &row(&test), 0),
        alive_until(NOW.boot + TTL),
        "a grant that is not pinned ends with its lease"
    );
}

#[test]
fn a_missing_file_means_unknown_and_dead_only_a_lease_later() {
    let test = TestDb::new();
    std::fs::remove_file(test.heartbeat.path()).unwrap();
    let noticed = Repair::Missing(Some(NOW.boot));
    let unknown = Liveness::Alive { until: Some(NOW.boot + TTL), repair: Some(noticed) };
    assert_eq!(check(&test, &row(&test), 0), unknown);
    let since = Row { missing: Some(NOW.boot), ..row(&test) };
    assert_eq!(check(&test, &since, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(check(&test, &since, TTL), Liveness::Dead);
    // The note is from before a restart of the machine: its time is later than now.
    let stale = Row { missing: Some(NOW.boot + TTL), ..row(&test) };
    assert_eq!(check(&test, &stale, 0), unknown);
    // The file is found again: the note is removed.
    test.heartbeat.renew(NOW.boot).unwrap();
    let again = Liveness::Alive { until: Some(NOW.boot + TTL), repair: Some(Repair::Missing(None)) };
    assert_eq!(check(&test, &since, 0), again);
    let again = Liveness::Alive { until: None, repair: Some(Repair::Missing(None)) };
    assert_eq!(check(&test, &Row { flags: 1, ..since }, 0), again, "a pinned grant's note as well");
}

#[test]
fn a_fixed_lease_ends_on_time_whatever_is_renewed() {
    let test = TestDb::new();
    let fixed = Row { flags: 4, until: Some(NOW.boot + SECOND), ..row(&test) };
    test.heartbeat.renew(NOW.boot + SECOND).unwrap();
    assert_eq!(check(&test, &fixed, SECOND - 1), alive_until(NOW.boot + SECOND));
    assert_eq!(check(&test, &fixed, SECOND), Liveness::Dead);
    // A fixed lease needs no renewals: a process that holds only fixed leases makes none.
    let long = Row { flags: 4, until: Some(NOW.boot + 9 * TTL), ..row(&test) };
    assert_eq!(check(&test, &long, 8 * TTL), alive_until(NOW.boot + 9 * TTL));
}

#[test]
fn an_evicted_holder_gets_no_more_than_its_last_lease() {
    let test = TestDb::new();
    let evicted = Row { flags: 2, until: Some(NOW.boot + TTL), ..row(&test) };
    test.heartbeat.renew(NOW.boot + TTL).unwrap();
    assert_eq!(check(&test, &evicted, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(check(&test, &evicted, TTL), Liveness::Dead);
    let marked = Row { flags: 2, ..row(&test) };
    assert_eq!(
        check(&test, &marked, TTL),
        alive_until(NOW.boot + 2 * TTL),
        "its owner does not know of the eviction yet"
    );
}

#[test]
fn a_detached_lease_ends_by_the_clock() {
    let test = TestDb::new();
    let detached = Row {
        process: None,
        until: Some(NOW.boot + TTL),
        boot: Some(test.boot),
        wall: Some(0),
        ..row(&test)
    };
    assert_eq!(check(&test, &detached, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(check(&test, &detached, TTL), Liveness::Dead);
}

#[test]
fn after_a_restart_a_detached_lease_ends_by_the_wall_clock_but_never_later_than_its_length() {
    let test = TestDb::new();
    let wall = |left: i64| NOW.wall.checked_add_signed(left).unwrap();
    let left = |micros: i64| {
        let before = Some(BootId([9; 16]));
        let row = Row { process: None, until: Some(5), boot: before, wall: Some(wall(micros)), ..row(&test) };
        check(&test, &row, 0)
    };
    let rebased = |end: u64| Liveness::Alive { until: Some(end), repair: Some(Repair::Until(end)) };
    assert_eq!(left(1_000_000), rebased(NOW.boot + SECOND));
    assert_eq!(left(3_600_000_000), rebased(NOW.boot + TTL), "the wall clock was set back an hour");
    assert_eq!(left(0), Liveness::Dead);
    assert_eq!(left(-1), Liveness::Dead);
}
