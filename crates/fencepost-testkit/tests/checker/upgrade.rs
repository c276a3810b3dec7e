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
