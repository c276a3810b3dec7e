use fencepost_core::Mode;

use super::*;
use crate::testing::{NOW, Place, SECOND};

const TTL: u64 = 30 * SECOND;

fn row(place: &Place) -> Row {
    Row {
        seq: 1,
        token: 7,
        id: [1; 16],
        mode: Mode::Exclusive,
        process: Some(place.side.key()),
        ttl: TTL,
        flags: 0,
        until: None,
        boot: None,
        wall: None,
        missing: None,
    }
}

fn judge(place: &Place, row: &Row, after: u64) -> Standing {
    place.later(after, |_, census| Ok(census.judge(row)?))
}

fn alive_until(end: u64) -> Standing {
    Standing::Alive { until: Some(end), repair: None }
}

#[test]
fn a_holder_lives_as_long_as_its_lease() {
    let place = Place::new();
    let row = row(&place);
    assert_eq!(judge(&place, &row, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(judge(&place, &row, TTL), Standing::Dead);
    place.side.renew(NOW.boot + SECOND).unwrap();
    assert_eq!(judge(&place, &row, TTL), alive_until(NOW.boot + TTL + SECOND));
}

#[test]
fn a_waiter_lives_three_seconds_without_a_renewal() {
    let place = Place::new();
    let row = Row { token: 0, ..row(&place) };
    assert_eq!(judge(&place, &row, 3 * SECOND - 1), alive_until(NOW.boot + 3 * SECOND));
    assert_eq!(judge(&place, &row, 3 * SECOND), Standing::Dead);
}

#[test]
fn a_dead_process_holds_nothing_however_long_the_lease() {
    let place = Place::new();
    for row in [
        Row { process: Some(place.dead), ..row(&place) },
        Row { process: Some(place.dead), flags: 1, ..row(&place) },
        Row { process: Some(place.dead), flags: 4, until: Some(u64::MAX), ..row(&place) },
    ] {
        assert_eq!(judge(&place, &row, 0), Standing::Dead);
    }
}

#[test]
fn a_process_from_before_a_restart_is_dead_although_its_file_could_be_locked() {
    let place = Place::new();
    let before = Side::create(&place.sides(), Key::fresh().unwrap(), BootId([9; 16]), 0, NOW.boot).unwrap();
    assert_eq!(judge(&place, &Row { process: Some(before.key()), ..row(&place) }, 0), Standing::Dead);
}

#[test]
fn a_pinned_grant_lasts_until_its_lock_falls_or_it_is_over() {
    let place = Place::new();
    let pinned = Row { flags: 1, ..row(&place) };
    assert_eq!(judge(&place, &pinned, 100 * TTL), Standing::Alive { until: None, repair: None });
    let waiting = Row { token: 0, ..pinned.clone() };
    assert_eq!(judge(&place, &waiting, 100 * TTL), Standing::Dead, "a place in line is not pinned");
    crate::mark_over(&place.side.path()).unwrap();
    assert_eq!(judge(&place, &pinned, 0), Standing::Dead);
    assert_eq!(
        judge(&place, &row(&place), 0),
        alive_until(NOW.boot + TTL),
        "what is not pinned lives by its lease"
    );
}

#[test]
fn a_missing_file_means_unknown_and_dead_only_a_lease_later() {
    let place = Place::new();
    std::fs::remove_file(place.side.path()).unwrap();
    let noticed = Repair::Missing(Some(NOW.boot));
    let unknown = Standing::Alive { until: Some(NOW.boot + TTL), repair: Some(noticed) };
    assert_eq!(judge(&place, &row(&place), 0), unknown);
    let since = Row { missing: Some(NOW.boot), ..row(&place) };
    assert_eq!(judge(&place, &since, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(judge(&place, &since, TTL), Standing::Dead);
    // Written before a restart: later than now.
    let stale = Row { missing: Some(NOW.boot + TTL), ..row(&place) };
    assert_eq!(judge(&place, &stale, 0), unknown);
    // Found again: what was noted is forgotten.
    place.side.renew(NOW.boot).unwrap();
    let again = Standing::Alive { until: Some(NOW.boot + TTL), repair: Some(Repair::Missing(None)) };
    assert_eq!(judge(&place, &since, 0), again);
}

#[test]
fn a_fixed_lease_ends_on_time_whatever_is_renewed() {
    let place = Place::new();
    let fixed = Row { flags: 4, until: Some(NOW.boot + SECOND), ..row(&place) };
    place.side.renew(NOW.boot + SECOND).unwrap();
    assert_eq!(judge(&place, &fixed, SECOND - 1), alive_until(NOW.boot + SECOND));
    assert_eq!(judge(&place, &fixed, SECOND), Standing::Dead);
    // Nor does it need renewals: a process that holds only fixed leases makes none.
    let long = Row { flags: 4, until: Some(NOW.boot + 9 * TTL), ..row(&place) };
    assert_eq!(judge(&place, &long, 8 * TTL), alive_until(NOW.boot + 9 * TTL));
}

#[test]
fn an_evicted_holder_gets_no_more_than_its_last_lease() {
    let place = Place::new();
    let evicted = Row { flags: 2, until: Some(NOW.boot + TTL), ..row(&place) };
    place.side.renew(NOW.boot + TTL).unwrap();
    assert_eq!(judge(&place, &evicted, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(judge(&place, &evicted, TTL), Standing::Dead);
    let marked = Row { flags: 2, ..row(&place) };
    assert_eq!(judge(&place, &marked, TTL), alive_until(NOW.boot + 2 * TTL), "its owner does not know yet");
}

#[test]
fn a_detached_lease_ends_by_the_clock() {
    let place = Place::new();
    let detached = Row {
        process: None,
        until: Some(NOW.boot + TTL),
        boot: Some(place.boot),
        wall: Some(0),
        ..row(&place)
    };
    assert_eq!(judge(&place, &detached, TTL - 1), alive_until(NOW.boot + TTL));
    assert_eq!(judge(&place, &detached, TTL), Standing::Dead);
}

#[test]
fn after_a_restart_a_detached_lease_ends_by_the_wall_clock_but_never_later_than_its_length() {
    let place = Place::new();
    let wall = |left: i64| NOW.wall.checked_add_signed(left).unwrap();
    let left = |micros: i64| {
        let before = Some(BootId([9; 16]));
        let row =
            Row { process: None, until: Some(5), boot: before, wall: Some(wall(micros)), ..row(&place) };
        judge(&place, &row, 0)
    };
    let rebased = |end: u64| Standing::Alive { until: Some(end), repair: Some(Repair::Until(end)) };
    assert_eq!(left(1_000_000), rebased(NOW.boot + SECOND));
    assert_eq!(left(3_600_000_000), rebased(NOW.boot + TTL), "the wall clock was set back an hour");
    assert_eq!(left(0), Standing::Dead);
    assert_eq!(left(-1), Standing::Dead);
}
