//! Tokens, and "busy" answers.

use super::{good, kinds};
use fencepost_testkit::checker::Kind;

#[test]
fn token_that_does_not_grow() {
    let text = "
        0 a ask r x ever
        1 a granted 7 31
        2 a release
        3 a released
        4 b ask r x ever
        5 b granted 6 33
        6 b release
        7 b released";
    assert_eq!(kinds(text), [Kind::TokenOrder]);
    assert_eq!(kinds(&text.replace("granted 6", "granted 7")), [Kind::TokenOrder]);
    good(&text.replace("granted 6", "granted 8"));
}

#[test]
fn token_drawn_before_the_grant() {
    // Both were requested before either was granted. They exclude each other, and that orders them.
    let text = "
        0 a ask r x ever
        0 b ask r x ever
        1 a granted 2 31
        2 a release
        3 a released
        4 b granted 1 33
        6 b release
        7 b released";
    assert_eq!(kinds(text), [Kind::TokenOrder]);
    // Readers that held together may have been granted in either order.
    good(&text.replace("r x", "r s"));
    // So may a grant that had expired when it was returned.
    good(&text.replace("4 b granted 1 33", "4 b granted 1 4"));
}

#[test]
fn tokens_of_two_resources_have_nothing_to_do_with_each_other() {
    good(
        "
        0 a ask r x ever
        1 a granted 7 31
        2 a release
        3 a released
        4 b ask q x ever
        5 b granted 7 33
        6 b release
        7 b released",
    );
}

#[test]
fn busy_with_nothing_in_the_way() {
    let text = "
        0 a ask r x ever
        1 a granted 1 31
        2 a release
        3 a released
        4 b ask r x try
        5 b busy";
    assert_eq!(kinds(text), [Kind::UnjustifiedBusy]);
    // The release had not returned.
    good(&text.replace("3 a released", "").replace("5 b busy", "5 b busy\n6 a released"));
    // The release was not confirmed: the lock may have been held until the end of its lease, but not longer.
    good(&text.replace("3 a released", "3 a unsure"));
    let late = text.replace("3 a released", "3 a unsure").replace("4 b", "34 b").replace("5 b", "35 b");
    assert_eq!(kinds(&late), [Kind::UnjustifiedBusy]);
}

#[test]
fn busy_beside_holders_that_leave_room() {
    let text = "
        0 a ask r s ever
        1 a granted 1 31
        2 b ask r s try
        3 b busy
        6 a release
        7 a released";
    assert_eq!(kinds(text), [Kind::UnjustifiedBusy]);
    good(&text.replace("r s try", "r x try"));
    // A queued writer blocks a reader.
    good(
        &text
            .replace("2 b ask", "2 c ask r x ever\n2 b ask")
            .replace("7 a released", "7 a released\n8 c dropped"),
    );
    let permits = text.replace("r s ever", "r p2/3 ever");
    assert_eq!(kinds(&permits.replace("r s try", "r p1/3 try")), [Kind::UnjustifiedBusy]);
    good(&permits.replace("r s try", "r p2/3 try"));
}

#[test]
fn two_that_try_are_no_reason_for_both_to_be_busy() {
    assert_eq!(
        kinds(
            "
        0 a ask r x try
        0 b ask r x try
        1 a busy
        1 b busy"
        ),
        [Kind::UnjustifiedBusy, Kind::UnjustifiedBusy]
    );
}

#[test]
fn a_dropped_request_may_linger_for_its_lease() {
    let text = "
        0 a ask r x ever 30
        1 a dropped
        10 b ask r x try
        11 b busy";
    good(text);
    assert_eq!(kinds(&text.replace("10 b", "40 b").replace("11 b", "41 b")), [Kind::UnjustifiedBusy]);
}
