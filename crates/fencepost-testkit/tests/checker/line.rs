//! The queue: claims that were overtaken, that were not woken, and that waited too long.

use super::{good, kinds, tale};
use fencepost_testkit::checker::{Kind, Promises, check};

const LINE: &str = "
        0 c ask r x ever
        0 c granted 1 100
        1 a ask r x ever
        2 a waiting 50
        3 b ask r x ever
        3 b waiting 50
        4 c release
        5 c released
        6 b granted 2 36
        7 b release
        8 b released
        9 a granted 3 40
        10 a release
        11 a released";

#[test]
fn overtaken_in_the_queue() {
    assert_eq!(kinds(LINE), [Kind::Overtaken]);
    // Without the promise it is allowed.
    assert!(check(&tale(LINE), &Promises::default()).is_empty());
    // A's position was not confirmed when B asked.
    good(&LINE.replace("2 a waiting 50", "").replace("3 b waiting 50", "3 a waiting 50\n3 b waiting 50"));
    // A's position had expired.
    good(&LINE.replace("2 a waiting 50", "2 a waiting 5"));
    // A lost its position and was queued again behind B.
    good(&LINE.replace("5 c released", "5 c released\n5 a unseated"));
}

#[test]
fn an_unfair_claim_may_pass_at_its_arrival_alone() {
    let waited = LINE.replace("3 b ask r x ever", "3 b ask r x ever\n3 b unfair");
    assert_eq!(kinds(&waited), [Kind::Overtaken], "it waited");
    // It may have waited in a queue of its client, and then arrived at the engine.
    let unseen = Promises { arrivals_seen: false, ..Promises::fair() };
    assert!(check(&tale(&waited), &unseen).is_empty());
    assert_eq!(check(&tale(LINE), &unseen).len(), 1, "others have a turn all the same");
    good(&waited.replace("3 b waiting 50", ""));
    // It was queued again, by a new claim that is unfair, too.
    good(&waited.replace("5 c released", "5 c released\n5 b unseated\n5 b waiting 50"));
}

#[test]
fn overtaken_by_a_grant_while_the_first_never_gets_one() {
    let text = LINE
        .replace("1 a ask r x ever", "1 a ask r x 9")
        .replace("9 a granted 3 40", "9 a timeout")
        .replace("10 a release", "")
        .replace("11 a released", "");
    assert_eq!(kinds(&text), [Kind::Overtaken]);
    // It was told later that it still waits, and then was dropped.
    let dropped = text.replace("r x 9", "r x ever").replace("9 a timeout", "9 a dropped");
    assert_eq!(kinds(&dropped.replace("7 b", "7 a waiting 50\n7 b")), [Kind::Overtaken]);
    // The time of its end is not known: it may have been before the grant.
    good(&dropped);
    good(&text.replace("9 a timeout", "").replace("5 c released", "5 c released\n5 a timeout"));
}

#[test]
fn a_writer_starved_by_readers() {
    let text = "
        0 c ask r s ever
        0 c granted 1 100
        1 a ask r x ever
        2 a waiting 50
        3 b ask r s ever
        4 b granted 2 36
        5 b release
        6 b released
        7 c release
        8 c released
        9 a granted 3 40
        10 a release
        11 a released";
    assert_eq!(kinds(text), [Kind::Overtaken]);
}

#[test]
fn readers_are_ordered_by_their_tokens() {
    let text = "
        0 c ask r x ever
        0 c granted 1 100
        1 a ask r s ever
        2 a waiting 50
        3 b ask r s ever
        3 b waiting 50
        4 c release
        5 c released
        6 b granted 3 36
        6 a granted 2 36
        7 b release
        8 b released
        10 a release
        11 a released";
    // B's answer came back first, but its token shows that it was granted later.
    good(text);
    let swapped = text.replace("granted 3 36", "granted 9 36").replace("granted 2 36", "granted 10 36");
    assert_eq!(kinds(&swapped), [Kind::Overtaken]);
}

#[test]
fn alone_in_line_and_not_woken() {
    let text = "
        0 1:c ask r x ever
        0 1:c granted 1 100
        1 2:a ask r x ever
        2 2:a waiting 100
        4 1:c release
        5 1:c released
        60 2:a granted 2 90
        61 2:a release
        62 2:a released";
    assert_eq!(kinds(text), [Kind::Unwoken]);
    // A position ends with its grant; until then it was alone.
    assert_eq!(kinds(&text.replace("60 2:a granted", "60 2:a unseated\n60 2:a granted")), [Kind::Unwoken]);
    good(&text.replace("5 1:c released", "5 1:c released\n6 2:a unseated"));
    good(&text.replace("5 1:c released", "5 1:c unsure").replace("60 2:a granted", "36 2:a granted"));
    good(&text.replace("5 1:c released", "5 1:c released\n6 2: paused\n59 2: resumed"));
    // Another claim may have held in between.
    good(&text.replace("5 1:c released", "5 3:a ask r x try 100\n5 1:c released\n59 3:a dropped"));
}

#[test]
fn late_answers() {
    let text = "
        0 b ask r x ever 100
        0 b granted 1 100
        0 a ask r x 10
        50 a timeout
        51 b release
        52 b released";
    assert_eq!(kinds(text), [Kind::LateAnswer]);
    good(&text.replace("50 a", "25 a"));
    good(&text.replace("50 a timeout", "1 a paused\n49 a resumed\n50 a timeout"));
}
