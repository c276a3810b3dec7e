//! Holds that exclude each other.

use super::{good, kinds, tale};
use fencepost_testkit::checker::{Kind, Promises, check};
use std::time::Duration;

#[test]
fn overlap_of_two_exclusive_holders() {
    let text = "
        0 a ask r x ever
        1 a granted 1 31
        2 b ask r x ever
        3 b granted 2 33
        4 a release
        5 a released
        6 b release
        7 b released";
    assert_eq!(kinds(text), [Kind::Overlap]);
    good(&text.replace("3 b granted 2 33", "").replace("5 a released", "5 a released\n5 b granted 2 35"));
}

#[test]
fn overlap_of_a_reader_and_a_writer() {
    let text = "
        0 a ask r s ever
        1 a granted 1 31
        2 b ask r x ever
        3 b granted 2 33
        4 b release
        5 b released
        6 a release
        7 a released";
    assert_eq!(kinds(text), [Kind::Overlap]);
    good(&text.replace("r x", "r s"));
}

#[test]
fn overlap_of_a_semaphore_and_a_mutex() {
    let text = "
        0 a ask r p1/3 ever
        1 a granted 1 31
        2 b ask r x ever
        3 b granted 2 33
        4 b release
        5 b released
        6 a release
        7 a released";
    assert_eq!(kinds(text), [Kind::Overlap]);
    good(&text.replace("r x", "r p2/3"));
    assert_eq!(kinds(&text.replace("r x", "r p3/3")), [Kind::Permits]);
}

#[test]
fn too_many_permits_though_each_pair_fits() {
    let text = "
        0 a ask r p1/2 ever
        0 b ask r p1/2 ever
        0 c ask r p1/2 ever
        1 a granted 1 31
        1 b granted 2 31
        1 c granted 3 31
        2 a release
        2 b release
        2 c release
        3 a released
        3 b released
        3 c released";
    assert_eq!(kinds(text), [Kind::Permits]);
    good(&text.replace("p1/2", "p1/3"));
}

#[test]
fn overlap_hidden_by_a_release_that_is_only_begun_later() {
    // A holds until it *calls* release. A grant to B just before that is an overlap, even at the same time.
    let early = "
        0 a ask r x ever
        1 a granted 1 31
        2 b ask r x ever
        5 b granted 2 33
        5 a release
        6 a released
        6 b release
        7 b released";
    assert_eq!(kinds(early), [Kind::Overlap]);
    good(
        "
        0 a ask r x ever
        1 a granted 1 31
        2 b ask r x ever
        5 a release
        5 b granted 2 33
        6 a released
        6 b release
        7 b released",
    );
}

#[test]
fn a_tie_between_two_recorders_proves_nothing() {
    good(
        "
        0 1:a ask r x ever
        1 1:a granted 1 31
        5 1:a release
        6 1:a released
        ---
        2 2:a ask r x ever
        5 2:a granted 2 33
        6 2:a release
        7 2:a released",
    );
}

#[test]
fn a_holder_that_is_stopped_past_its_lease_may_have_a_successor() {
    let text = "
        0 1:a ask r x ever
        1 1:a granted 1 30
        2 1: paused
        2 2:a ask r x ever
        31 2:a granted 2 60
        40 1: resumed
        41 1:a lost
        42 2:a release
        43 2:a released";
    good(text);
    // But it must not count as held after the pause: then both held.
    assert_eq!(kinds(&text.replace("41 1:a lost", "41 1:a ensured 70\n42 1:a lost")), [Kind::Overlap]);
    // Nor may the next grant come before the end of the validity that the holder knew.
    assert_eq!(kinds(&text.replace("31 2:a granted 2 60", "29 2:a granted 2 60")), [Kind::Overlap]);
}

#[test]
fn a_renewed_holder_counts_as_long_as_it_was_told() {
    let text = "
        0 a ask r x ever
        1 a granted 1 30
        20 a ensured 50
        2 b ask r x ever
        40 b granted 2 70
        60 a lost
        61 b release
        62 b released";
    let sorted = {
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.sort_by_key(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap());
        lines.join("\n")
    };
    assert_eq!(kinds(&sorted), [Kind::Overlap]);
    good(&sorted.replace("20 a ensured 50", "20 a ensured 38"));
}

#[test]
fn a_killed_holder_holds_no_more() {
    good(
        "
        0 1:a ask r x ever
        1 1:a granted 1 1000
        3 1: died
        4 2:a ask r x ever
        5 2:a granted 2 33
        6 2:a release
        7 2:a released",
    );
}

#[test]
fn evicting_marks_and_breaking_in_breaks_in() {
    let text = "
        0 a ask r x ever
        1 a granted 1 100
        2 b ask r x ever
        3 z evict r 1
        4 b granted 2 100
        5 a lost
        6 b release
        7 b released";
    assert_eq!(kinds(text), [Kind::Overlap]);
    good(&text.replace("evict r 1", "evict r 1 now"));
}

#[test]
fn revived_after_loss() {
    let text = "
        0 a ask r x ever
        1 a granted 1 31
        2 a lost
        3 a ensured 40";
    assert_eq!(kinds(text), [Kind::Revived]);
}

#[test]
fn the_engines_own_listing() {
    assert_eq!(kinds("0 z listed r x x"), [Kind::ListedOverlap]);
    assert_eq!(kinds("0 z listed r x s"), [Kind::ListedOverlap]);
    assert_eq!(kinds("0 z listed r p1/2 p1/2 p1/2"), [Kind::ListedOverlap]);
    good("0 z listed r p1/2 p1/2\n1 z listed r s s s\n2 z listed r x\n3 z listed r");
}

/// A lock of a session ends with it. Its holder may believe in it for a while, and no longer.
#[test]
fn a_hold_whose_session_ends_is_no_overlap_once_its_holder_is_told() {
    let text = "
        0 a ask r x ever
        1 a granted 1 31
        2 ended sessions-ended
        3 b ask r x ever
        4 a ensured 31
        7 b granted 2 35
        9 a lost
        10 b release
        11 b released";
    let overlaps = |text: &str| {
        let promises = Promises { told: Duration::from_millis(4), complete: false, ..Promises::default() };
        check(&tale(text), &promises).iter().filter(|finding| finding.kind == Kind::Overlap).count()
    };
    assert_eq!(overlaps(text), 0);
    assert_eq!(overlaps(&text.replace("9 a lost", "8 a ensured 31")), 1, "it was to be told by 6");
    assert_eq!(overlaps(&text.replace("2 ended sessions-ended", "")), 1);
    // The grant arrives when its session has ended.
    let late = text.replace("1 a granted 1 31", "").replace("4 a ensured 31", "4 a granted 1 31");
    assert_eq!(overlaps(&late), 0);
    let late = late.replace("4 a granted 1 31", "6 a granted 1 31");
    assert_eq!(overlaps(&late), 1, "it arrives too late for that");
}
