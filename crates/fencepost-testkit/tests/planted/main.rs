//! Plants bugs in a layer over the engine in memory, and checks that the simulation meets each and that the checker reports it.
//!
//! `cargo test -p fencepost-testkit --test planted -- --nocapture` prints the finding for each bug.

mod buggy;

use buggy::{Bug, memory_with};
use fencepost_testkit::chaos::Odds;
use fencepost_testkit::checker::Kind;
use fencepost_testkit::sim::{Primitive, Ran, Rehearsal, Report, Setup, simulate, simulate_primitive};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The time in which a bug must be found.
const PATIENCE: Duration = Duration::from_secs(300);

fn run(setup: &Setup, seed: u64, bug: Option<Bug>) -> Report {
    simulate(seed, setup, &memory_with(bug))
}

#[track_caller]
fn clean(setup: &Setup, seed: u64) {
    let report = run(setup, seed, None);
    assert!(report.is_good(), "{setup:?} {seed}: {:?} {:#?}", report.ran, report.findings);
}

fn setups(names: &[&str]) -> Vec<Setup> {
    names.iter().map(|name| Setup::named(name).unwrap()).collect()
}

#[track_caller]
fn caught(bug: Bug, expected: &[Kind]) {
    caught_by(&setups(&Setup::NAMES), bug, expected);
}

/// Runs seeds until one of the expected kinds is found. Other findings on the way are consequences of the
/// bug, and do not count. Without the bug the same seed finds nothing.
#[track_caller]
fn caught_by(setups: &[Setup], bug: Bug, expected: &[Kind]) {
    let start = Instant::now();
    let (mut claims, mut seen) = (0, BTreeSet::new());
    for (seed, setup) in (1..).zip(setups.iter().cycle()) {
        let report = run(setup, seed, Some(bug));
        claims += report.claims;
        seen.extend(report.findings.iter().map(|finding| finding.kind));
        if let Some(finding) = report.findings.iter().find(|finding| expected.contains(&finding.kind)) {
            println!("{bug:?}: caught after {claims} claims in {:?} by {seed}: {finding}", start.elapsed());
            return clean(setup, seed);
        }
        let hidden =
            format!("{bug:?} was not caught by {claims} claims; seen: {seen:?}, last run: {:?}", report.ran);
        assert!(start.elapsed() < PATIENCE, "{hidden}");
    }
}

/// Runs seeds of a primitive with this bug until the expected kind is found. Without delays each call would be over at once.
#[track_caller]
fn caught_in(primitive: Primitive, bug: Bug, expected: Kind) {
    let start = Instant::now();
    for seed in 1.. {
        let report = rehearse(primitive, seed, Some(bug));
        if let Some(finding) = report.findings.iter().find(|finding| finding.kind == expected) {
            println!("{bug:?}: caught in {:?} by {primitive:?} {seed}: {finding}", start.elapsed());
            return clean_in(primitive, seed);
        }
        assert!(report.findings.is_empty(), "{bug:?} was found otherwise: {:#?}", report.findings);
        assert!(start.elapsed() < PATIENCE, "{bug:?} was not found by {seed} runs of {primitive:?}");
    }
}

fn rehearse(primitive: Primitive, seed: u64, bug: Option<Bug>) -> Rehearsal {
    simulate_primitive(seed, primitive, Odds::BAD, &memory_with(bug))
}

#[track_caller]
fn clean_in(primitive: Primitive, seed: u64) {
    let report = rehearse(primitive, seed, None);
    let is_good = report.ran == Ran::Done && report.findings.is_empty();
    assert!(is_good, "{primitive:?} {seed}: {:?} {:#?}", report.ran, report.findings);
}

#[test]
fn no_bug_is_caught_where_there_is_none() {
    let names = [&Setup::NAMES[..], &Setup::UPGRADES].concat();
    for (seed, setup) in (1..).zip(setups(&names).repeat(20)) {
        clean(&setup, seed);
    }
    for (seed, primitive) in (1..).zip(Primitive::ALL.repeat(5)) {
        clean_in(primitive, seed);
    }
}

#[test]
fn release_by_name() {
    caught(Bug::ReleaseByName, &[Kind::Overlap, Kind::Permits]);
}

#[test]
fn no_recheck() {
    caught(Bug::NoRecheck, &[Kind::Overlap, Kind::Permits]);
}

#[test]
fn wall_clock_deadline() {
    caught(Bug::WallClockDeadline, &[Kind::Overlap, Kind::Permits]);
}

#[test]
fn token_reuse() {
    caught(Bug::TokenReuse, &[Kind::TokenOrder]);
}

#[test]
fn token_before_grant() {
    caught(Bug::TokenBeforeGrant, &[Kind::TokenOrder]);
}

#[test]
fn late_renewal() {
    caught(Bug::LateRenewal, &[Kind::Overlap, Kind::Permits]);
}

#[test]
fn lost_wakeup() {
    caught(Bug::LostWakeup, &[Kind::Unwoken, Kind::Unanswered]);
}

#[test]
fn orphaned_waiter() {
    caught(Bug::OrphanedWaiter, &[Kind::Leftover, Kind::UnjustifiedBusy, Kind::Unwoken]);
}

#[test]
fn shared_id() {
    caught(Bug::SharedId, &[Kind::Overlap, Kind::TokenOrder, Kind::Permits]);
}

#[test]
fn starving_writer() {
    caught(Bug::StarvingWriter, &[Kind::Overtaken]);
}

#[test]
fn upgrade_beside_readers() {
    caught_by(&setups(&Setup::UPGRADES), Bug::UpgradeBesideReaders, &[Kind::Overlap]);
}

#[test]
fn upgrade_overtaken() {
    caught_by(&setups(&Setup::UPGRADES), Bug::UpgradeOvertaken, &[Kind::Overtaken]);
}

#[test]
fn two_upgrades() {
    // Where two upgrades wait for each other, the run goes on to its limit of time, which depends on the number of claims.
    let setup = Setup { claims: 100, ..Setup::CALM_UPGRADES };
    caught_by(&[setup], Bug::TwoUpgrades, &[Kind::Overlap, Kind::Unanswered, Kind::TokenOrder]);
}

#[test]
fn a_latch_that_opens_early() {
    caught_in(Primitive::Latch, Bug::HolderCountedTwice, Kind::OpenEarly);
}

#[test]
fn a_barrier_that_opens_early() {
    caught_in(Primitive::Barrier, Bug::HolderCountedTwice, Kind::OpenEarly);
}

#[test]
fn a_barrier_that_is_left_early() {
    caught_in(Primitive::Barrier, Bug::HolderLeftOut, Kind::OpenEarly);
}

#[test]
fn two_leaders_of_a_term() {
    caught_in(Primitive::Election, Bug::LastCandidateShown, Kind::TwoLeaders);
}

#[test]
fn a_segment_that_is_not_locked() {
    caught_in(Primitive::Striped, Bug::OtherLock, Kind::SoldTwice);
}

#[test]
fn a_firing_that_runs_again() {
    caught_in(Primitive::Once, Bug::LaggingRecords, Kind::RanAgain);
    caught_in(Primitive::OnceWithRetry, Bug::LaggingRecords, Kind::RanAgain);
}
