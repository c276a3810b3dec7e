//! Latches, barriers, elections, segments and firings.

use super::{good, kinds, promises, tale};
use fencepost_testkit::checker::{Kind, Promises, check};

#[test]
fn a_gate_opens_when_enough_have_arrived() {
    good("0 a arrived g\n1 b arrived g\n2 c passed g 2\n2 a passed g 2");
    // An arrival at the same time in another process may have been earlier.
    good("0 1:a arrived g\n2 1:c passed g 2\n---\n2 2:b arrived g");
    assert_eq!(kinds("0 a arrived g\n1 c passed g 2\n2 b arrived g"), [Kind::OpenEarly]);
    assert_eq!(kinds("0 a arrived g\n0 b arrived h\n1 c passed g 2"), [Kind::OpenEarly]);
    assert_eq!(kinds("1 c passed g 1"), [Kind::OpenEarly]);
}

#[test]
fn a_term_has_one_leader() {
    good("0 a led r 7 ann\n1 b led r 7 ann\n2 b led r 8 bob\n3 b led s 8 ann");
    assert_eq!(kinds("0 a led r 7 ann\n1 b led r 7 bob"), [Kind::TwoLeaders]);
}

#[test]
fn a_piece_is_sold_once() {
    good("0 a sold s 2\n1 b sold s 1\n2 b sold t 2");
    assert_eq!(kinds("0 a sold s 2\n1 b sold s 2\n2 a sold s 1"), [Kind::SoldTwice]);
}

#[test]
fn a_firing_runs_once_or_until_it_ends_well() {
    let retried = "0 a began j 1\n1 a ended j 1 badly\n2 b began j 1\n3 b ended j 1 well\n4 a began j 2";
    let again = retried.to_owned() + "\n5 c began j 1";
    assert_eq!(kinds(retried), [Kind::RanAgain]);
    assert_eq!(kinds(&again), [Kind::RanAgain; 2]);
    let kinds = |text: &str| -> Vec<Kind> {
        let promises = Promises { retry: true, ..promises() };
        check(&tale(text), &promises).into_iter().map(|finding| finding.kind).collect()
    };
    assert_eq!(kinds(retried), []);
    assert_eq!(kinds(&again), [Kind::RanAgain]);
}
