//! Readers that upgrade.

use super::{good, kinds};
use fencepost_testkit::checker::Kind;

const UPGRADE: &str = "
        0 a ask r s ever
        0 a granted 1 100
        0 b ask r s ever
        0 b granted 2 100
        1 a upgrades
        2 a marked
        3 c ask r s 30
        4 b release
        5 b released
        6 a upgraded 3 100
        7 a ensured 100
        8 a release
        9 a released
        10 c granted 4 100
        11 c release
        12 c released";

const LATER: &str = "
        10 c granted 4 100
        11 c release
        12 c released";

#[test]
fn a_writer_since_its_upgrade() {
    good(UPGRADE);
    // The other reader was still there, or a new one is.
    let left = "4 b release\n        5 b released";
    let late =
        UPGRADE.replace(left, "").replace("7 a ensured 100", "7 b release\n7 b released\n7 a ensured 100");
    assert_eq!(kinds(&late), [Kind::Overlap]);
    let new = UPGRADE.replace(LATER, "").replace("8 a release", &[LATER, "8 a release"].join("\n"));
    assert_eq!(kinds(&new), [Kind::Overlap]);
    // A second one is a writer, too.
    let two = UPGRADE.replace(left, "4 b upgrades").replace("7 a ensured 100", "7 b upgraded 5 100");
    assert!(kinds(&(two + "\n13 b release\n13 b released")).contains(&Kind::Overlap));
}

#[test]
fn nobody_comes_between_a_mark_and_its_grant() {
    let between = UPGRADE
        .replace(LATER, "")
        .replace("3 c ask r s 30", "3 c ask r s 30\n3 c granted 3 100\n4 c release\n4 c released")
        .replace("a upgraded 3", "a upgraded 4");
    assert_eq!(kinds(&between), [Kind::Overtaken]);
    // It asked before the mark, or an eviction ended that.
    good(&between.replace("2 a marked", "").replace("3 c granted", "3 a marked\n3 c granted"));
    good(&between.replace("2 a marked", "2 a marked\n2 d evict r 1"));
    // The upgrade was given up.
    good(&between.replace("2 a marked", "2 a marked\n2 a reads-on").replace("6 a upgraded 4 100", ""));
}

#[test]
fn the_token_of_an_upgrade_is_greater() {
    assert_eq!(kinds(&UPGRADE.replace("a upgraded 3", "a upgraded 1")), [Kind::TokenOrder]);
    assert!(kinds(&UPGRADE.replace("c granted 4", "c granted 2")).contains(&Kind::TokenOrder));
}

#[test]
fn a_try_has_to_meet_another_reader() {
    let alone = "
        0 a ask r s ever
        0 a granted 1 100
        1 a upgrades try
        2 a others-read
        3 a release
        4 a released";
    assert_eq!(kinds(alone), [Kind::UnjustifiedBusy]);
    good(
        &alone
            .replace("0 a granted", "0 b ask r s ever\n0 b granted 2 90\n0 a granted")
            .replace("4 a released", "4 a released\n5 b release\n6 b released"),
    );
}

const DOWNGRADE: &str = "
        0 a ask r x ever
        0 a granted 1 100
        0 c ask r x 90
        1 c waiting 90
        2 a downgrades
        3 a downgraded
        4 b ask r s try
        5 b busy
        6 a ensured 100
        8 a release
        9 a released
        10 c granted 2 100
        11 c release
        12 c released";

#[test]
fn a_reader_since_its_downgrade() {
    good(DOWNGRADE);
    // The waiting writer gets in beside the reader.
    let beside = DOWNGRADE
        .replace("        10 c granted 2 100\n", "")
        .replace("6 a ensured", "6 c granted 2 100\n6 a ensured");
    assert_eq!(kinds(&beside), [Kind::Overlap]);
    // The reader has found its loss before that.
    let lost = beside.replace("6 c granted 2 100\n6 a ensured 100", "6 a lost\n6 c granted 2 100");
    good(&lost.replace("8 a release\n        9 a released", ""));
    // Another reader fits beside it.
    let reads = DOWNGRADE
        .replace("0 c ask r x 90\n        1 c waiting 90", "")
        .replace("5 b busy", "5 b granted 2 90");
    let reads = reads.replace(
        "10 c granted 2 100\n        11 c release\n        12 c released",
        "7 b release\n7 b released",
    );
    good(&reads);
    // Its writer is no reason for "busy" any more, once the engine has confirmed the downgrade.
    let refused = reads.replace("5 b granted 2 90", "5 b busy").replace("7 b release\n7 b released", "");
    assert_eq!(kinds(&refused), [Kind::UnjustifiedBusy]);
    good(&refused.replace("3 a downgraded", "3 a downgraded-unsure"));
}

#[test]
fn a_reader_that_was_a_writer_upgrades_again() {
    let again = "
        0 a ask r x ever
        0 a granted 1 100
        2 a downgrades
        3 a downgraded
        4 b ask r s ever
        4 b granted 2 100
        5 a upgrades
        5 a marked
        6 b release
        7 b released
        8 a upgraded 3 100
        9 a ensured 100
        10 a downgrades
        11 a downgraded
        12 a release
        13 a released";
    good(again);
    assert_eq!(kinds(&again.replace("a upgraded 3", "a upgraded 1")), [Kind::TokenOrder]);
    let late = again
        .replace("6 b release\n        7 b released", "")
        .replace("10 a downgrades", "9 b release\n9 b released\n10 a downgrades");
    assert_eq!(kinds(&late), [Kind::Overlap]);
}

/// The reader is evicted by a token that it has not received.
#[test]
fn an_upgrade_whose_reply_is_lost_may_be_evicted() {
    let evicted = "
        0 a ask r s ever
        0 a granted 1 100
        1 a upgrades
        2 c ask r x ever
        4 d evict r 2 now
        5 c granted 3 100
        6 a reads-on
        6 a lost
        7 c release
        8 c released";
    good(evicted);
    assert_eq!(kinds(&evicted.replace("2 now", "2")), [Kind::Overlap]);
    assert_eq!(kinds(&evicted.replace("1 a upgrades", "").replace("6 a reads-on", "")), [Kind::Overlap]);
    // The reader says that it holds.
    assert_eq!(kinds(&evicted.replace("6 a lost", "6 a ensured 100\n6 a lost")), [Kind::Overlap]);
}
