//! A fallback over two engines in memory, by seeds: the primary is down for all, and comes back, again and again.

use fencepost_core::{Backend, Clock, Memory, Moment, Runtime};
use fencepost_degrade::{Degrade, DegradeLayer};
use fencepost_testkit::chaos::{Chaos, Odds};
use fencepost_testkit::checker::{Finding, Kind};
use fencepost_testkit::history::What;
use fencepost_testkit::sim::{LONGEST_LEASE, Ran, Report, Rng, Setup, simulate_layered};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(500);

/// Outages of the primary for all clients.
struct Outages {
    primary: Arc<Chaos>,
    clock: Clock,
    next: Mutex<Next>,
    /// When each began, and when it ended.
    past: Arc<Mutex<Vec<(u64, u64)>>>,
}

struct Next {
    rng: Rng,
    down: bool,
    at: Moment,
}

impl Outages {
    fn at(self: Arc<Self>, time: Moment) {
        let clock = self.clock.clone();
        clock.alarm(time, Waker::from(self));
    }
}

impl Wake for Outages {
    fn wake(self: Arc<Self>) {
        let now = self.clock.now();
        let mut next = self.next.lock().unwrap();
        if now < next.at {
            // The clock has stopped.
            return;
        }
        next.down = !next.down;
        self.primary.cut(next.down);
        let mut past = self.past.lock().unwrap();
        match past.last_mut().filter(|_| !next.down) {
            Some(outage) => outage.1 = now.as_nanos(),
            None => past.push((now.as_nanos(), u64::MAX)),
        }
        drop(past);
        // Long enough to be noticed by all, and often longer than a switch takes.
        let longest = 3 * (LONGEST_LEASE + INTERVAL);
        next.at = now + 2 * INTERVAL + Duration::from_nanos(next.rng.below(longest.as_nanos() as u64));
        let at = next.at;
        drop(next);
        self.at(at);
    }
}

/// A setup, and by how many microseconds the clock of the fallback is ahead.
struct Case {
    setup: Setup,
    skew: i64,
    /// The longest leases that the clients state in turn.
    longest_leases: [Duration; 2],
}

impl Case {
    fn of(setup: Setup) -> Case {
        // A wait for old leases is longer than a turn.
        let setup = Setup { prompt: Duration::from_secs(120), steps: false, ..setup };
        Case { setup, skew: 0, longest_leases: [LONGEST_LEASE; 2] }
    }

    /// Runs the seed. Returns its report, and how many grants were made while the primary was down.
    fn run(&self, seed: u64) -> (Report, usize) {
        let past = Arc::new(Mutex::new(Vec::new()));
        let fallback: Arc<dyn Backend> = Memory::with_clock_tokens(self.skew);
        let clients = AtomicU64::new(0);
        let primary = |clock: &Clock| -> Arc<dyn Backend> {
            let primary = Memory::with_clock_tokens(0);
            let primary = Arc::new(Chaos::new(primary, clock.clone(), seed, Odds::NONE));
            let next = Mutex::new(Next { rng: Rng::new(!seed), down: true, at: clock.now() });
            let (primary, clock) = (Arc::clone(&primary), clock.clone());
            let outages = Outages { primary: primary.clone(), clock, next, past: past.clone() };
            let start = outages.clock.now();
            Arc::new(outages).at(start);
            primary
        };
        let layer = |runtime: &Runtime, network: Arc<dyn Backend>| -> Arc<dyn Backend> {
            let client = clients.fetch_add(1, Ordering::Relaxed);
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(client);
            let fallback = Chaos::new(fallback.clone(), runtime.clock().clone(), seed, self.setup.odds);
            let longest = self.longest_leases[client as usize % 2];
            let options = Degrade::fallback("memory:").max_ttl(longest).probe_interval(INTERVAL);
            let layer = DegradeLayer::with_fallback(network, Arc::new(fallback), &options, runtime);
            Arc::new(layer.unwrap())
        };
        let report = simulate_layered(seed, &self.setup, &primary, &layer);
        let past = past.lock().unwrap();
        let during = |at: u64| past.iter().any(|(from, to)| (*from..*to).contains(&at));
        let grants =
            report.history.events().iter().filter(|event| matches!(event.what, What::Granted { .. }));
        let count = grants.filter(|event| during(event.at)).count();
        (report, count)
    }
}

/// The findings that matter here: a claim may find the lock busy at one engine while the other one waits for old leases.
fn serious(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.kind != Kind::UnjustifiedBusy).collect()
}

#[track_caller]
fn seeds(case: &Case, count: u64) {
    let (mut grants, mut during) = (0, 0);
    let count = std::env::var("FENCEPOST_CASES").map_or(count, |cases| cases.parse().unwrap());
    for seed in 1..=count {
        let (report, degraded) = case.run(seed);
        let findings = serious(&report);
        assert!(report.ran == Ran::Done && findings.is_empty(), "{seed}: {:?} {findings:#?}", report.ran);
        grants += report.grants;
        during += degraded as u64;
    }
    assert!(grants > 100 * count && during > 10 * count, "{grants} grants, {during} during outages");
}

#[test]
fn no_two_hold_and_tokens_grow_over_the_switches() {
    seeds(&Case::of(Setup::CALM), 30);
}

#[test]
fn nor_over_a_bad_network_with_clients_that_stop_and_die() {
    seeds(&Case::of(Setup::ROUGH), 15);
    seeds(&Case::of(Setup::PAUSES), 15);
}

#[test]
fn nor_with_requests_that_hang() {
    let odds = Odds { late_request: 40, late_reply: 40, delay: 2 * LONGEST_LEASE, ..Odds::NONE };
    seeds(&Case::of(Setup { odds, ..Setup::CALM }), 15);
}

#[test]
fn nor_with_clocks_that_are_apart() {
    for skew in [-900_000, -1, 1, 900_000] {
        seeds(&Case { skew, ..Case::of(Setup::CALM) }, 5);
    }
}

/// The proof that the checks above would see it. Every second client states a longest lease that the others exceed, so its switches do not
/// wait for their leases.
#[test]
fn a_switch_that_does_not_wait_for_old_leases_is_found() {
    let case = Case { longest_leases: [LONGEST_LEASE, INTERVAL], ..Case::of(Setup::CALM) };
    let found = (1..=40).map(|seed| case.run(seed).0).find(|report| {
        serious(report).iter().any(|finding| matches!(finding.kind, Kind::Overlap | Kind::Permits))
    });
    assert!(found.is_some());
}
