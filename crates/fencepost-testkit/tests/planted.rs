//! Plants bugs in the memory engine and in the primitives, and checks that the simulation meets each and that the checker reports
//! it.
//!
//! `cargo test -p fencepost-testkit --features planted --test planted -- --nocapture` prints the finding for
//! each bug.

#![cfg(feature = "planted")]

use fencepost_core::{Bug, LockBug, Memory};
use fencepost_recipes::RecipeBug;
use fencepost_testkit::chaos::Odds;
use fencepost_testkit::checker::Kind;
use fencepost_testkit::sim::{Primitive, Ran, Setup, simulate, simulate_primitive};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The time in which a bug must be found.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs seeds until one of the expected kinds is found. Other findings on the way are consequences of the
/// bug, and do not count.
#[track_caller]
fn caught(bug: Bug, expected: &[Kind]) {
    caught_by(&Setup::NAMES, bug, expected);
}

#[track_caller]
fn caught_by(names: &[&str], bug: Bug, expected: &[Kind]) {
    let start = Instant::now();
    let (mut claims, mut seen) = (0, BTreeSet::new());
    for seed in 1.. {
        let name = names[seed as usize % names.len()];
        let report = simulate(seed, &Setup::named(name).unwrap(), &|_| Memory::with_bug(bug));
        claims += report.claims;
        seen.extend(report.findings.iter().map(|finding| finding.kind));
        if let Some(finding) = report.findings.iter().find(|finding| expected.contains(&finding.kind)) {
            println!(
                "{bug:?}: caught after {claims} claims in {:?} by {name} {seed}: {finding}",
                start.elapsed()
            );
            return;
        }
        let hidden =
            format!("{bug:?} was not caught by {claims} claims; seen: {seen:?}, last run: {:?}", report.ran);
        assert!(start.elapsed() < PATIENCE, "{hidden}");
    }
}

#[test]
fn no_bug_is_caught_where_there_is_none() {
    let names = [&Setup::NAMES[..], &Setup::UPGRADES].concat();
    for (seed, name) in (1..).zip(names.repeat(50)) {
        let report = simulate(seed, &Setup::named(name).unwrap(), &|_| Memory::new());
        assert!(
            report.findings.is_empty() && report.ran == Ran::Done,
            "{name} {seed}: {:#?}",
            report.findings
        );
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
    caught(Bug::LateRenewal, &[Kind::Overlap, Kind::Permits, Kind::Revived]);
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
    caught_by(&Setup::UPGRADES, Bug::UpgradeBesideReaders, &[Kind::Overlap]);
}

#[test]
fn upgrade_overtaken() {
    caught_by(&Setup::UPGRADES, Bug::UpgradeOvertaken, &[Kind::Overtaken]);
}

#[test]
fn two_upgrades() {
    caught_by(&Setup::UPGRADES, Bug::TwoUpgrades, &[Kind::Overlap, Kind::Unanswered, Kind::TokenOrder]);
}

/// Runs seeds of a primitive with this bug until the expected kind is found. Without delays each call would be over at once.
#[track_caller]
fn caught_in(primitive: Primitive, bug: RecipeBug, expected: Kind) {
    fencepost_recipes::plant(Some(bug));
    found_in(primitive, &bug, expected);
    fencepost_recipes::plant(None);
}

#[track_caller]
fn found_in(primitive: Primitive, bug: &dyn Debug, expected: Kind) {
    let start = Instant::now();
    for seed in 1.. {
        let report = simulate_primitive(seed, primitive, Odds::BAD, &|_| Memory::new());
        if let Some(finding) = report.findings.iter().find(|finding| finding.kind == expected) {
            println!("{bug:?}: caught in {:?} by {primitive:?} {seed}: {finding}", start.elapsed());
            break;
        }
        assert!(report.findings.is_empty(), "{bug:?} was found otherwise: {:#?}", report.findings);
        assert!(start.elapsed() < PATIENCE, "{bug:?} was not found by {seed} runs of {primitive:?}");
    }
}

#[test]
fn a_latch_that_opens_early() {
    caught_in(Primitive::Latch, RecipeBug::LatchOpensEarly, Kind::OpenEarly);
}

#[test]
fn a_barrier_that_opens_early() {
    caught_in(Primitive::Barrier, RecipeBug::BarrierOpensEarly, Kind::OpenEarly);
}

#[test]
fn a_barrier_that_is_left_early() {
    caught_in(Primitive::Barrier, RecipeBug::BarrierLeftEarly, Kind::OpenEarly);
}

#[test]
fn two_leaders_of_a_term() {
    caught_in(Primitive::Election, RecipeBug::LastCandidateLeads, Kind::TwoLeaders);
}

#[test]
fn a_segment_that_is_not_locked() {
    caught_in(Primitive::Striped, RecipeBug::WrongSegment, Kind::SoldTwice);
}

#[test]
fn a_firing_that_runs_again() {
    let bug = LockBug::NoLookBeforeRun;
    fencepost_core::plant(Some(bug));
    found_in(Primitive::Once, &bug, Kind::RanAgain);
    found_in(Primitive::OnceWithRetry, &bug, Kind::RanAgain);
    fencepost_core::plant(None);
}
