//! Core over memory, by seeds. `cargo run -p fencepost-testkit --release --example simulate` runs more seeds.

use fencepost_core::{Backend, Clock, Memory, Moment};
use fencepost_quorum::Quorum;
use fencepost_testkit::chaos::{Chaos, Odds};
use fencepost_testkit::checker::Kind;
use fencepost_testkit::history::{Event, What};
use fencepost_testkit::sim::{LONGEST_LEASE, Ran, Report, Rng, Setup, simulate};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

fn run(name: &str, seed: u64) -> Report {
    simulate(seed, &Setup::named(name).unwrap(), &|_| Memory::new())
}

#[track_caller]
fn good(name: &str, seed: u64) -> Report {
    let report = run(name, seed);
    assert!(report.is_good(), "{name} {seed}: {:?} {:#?}", report.ran, report.findings);
    report
}

/// Runs the first seeds of a setup. Release builds of the example run thousands of times as many.
fn first_seeds(name: &str) {
    let (mut claims, mut grants, mut faults) = (0, 0, 0);
    for seed in 1..=60 {
        let report = good(name, seed);
        claims += report.claims;
        grants += report.grants;
        faults += report.faults;
    }
    // A run without grants proves nothing.
    assert!(claims > 20_000 && grants > claims / 2, "{claims} claims, {grants} grants");
    assert_eq!(faults > 4_000, name == "rough", "{faults} faults");
}

#[test]
fn calm_seeds() {
    first_seeds("calm");
}

#[test]
fn seeds_with_pauses() {
    first_seeds("pauses");
}

#[test]
fn rough_seeds() {
    first_seeds("rough");
}

#[test]
fn seeds_with_upgrades() {
    let mut upgrades = 0;
    for (seed, name) in (1..=80).zip(Setup::UPGRADES.iter().cycle()) {
        let report = good(name, seed);
        let upgraded = |event: &&Event| matches!(event.what, What::Upgraded { .. });
        upgrades += report.history.events().iter().filter(upgraded).count();
    }
    assert!(upgrades > 400, "{upgrades} upgrades");
}

/// Makes a majority of five nodes. Each node knows which nodes vote.
fn quorum(clock: &Clock) -> Arc<dyn Backend> {
    let nodes = (0..5).map(|_| Memory::new() as Arc<dyn Backend>).collect();
    Arc::new(Quorum::new("quorum", nodes, clock.clone()).unwrap())
}

#[test]
fn seeds_of_a_quorum() {
    let mut grants = 0;
    for (seed, name) in (1..=36).zip(Setup::NAMES.iter().cycle()) {
        let report = simulate(seed, &Setup::named(name).unwrap(), &quorum);
        assert!(report.is_good(), "{name} {seed}: {:?} {:#?}", report.ran, report.findings);
        grants += report.grants;
    }
    assert!(grants > 6_000, "{grants} grants");
}

/// Outages of one node after the other. In each, nothing reaches the node for up to two leases.
struct Darkness {
    nodes: Vec<Arc<Chaos>>,
    clock: Clock,
    next: Mutex<Next>,
}

struct Next {
    rng: Rng,
    dark: Option<usize>,
    at: Moment,
}

impl Darkness {
    fn at(self: Arc<Self>, time: Moment) {
        let clock = self.clock.clone();
        clock.alarm(time, Waker::from(self));
    }
}

impl Wake for Darkness {
    fn wake(self: Arc<Self>) {
        let now = self.clock.now();
        let mut next = self.next.lock().unwrap();
        if now < next.at {
            // The clock has stopped.
            return;
        }
        next.dark = match next.dark {
            Some(dark) => {
                self.nodes[dark].cut(false);
                None
            }
            None => {
                let dark = next.rng.below(self.nodes.len() as u64) as usize;
                self.nodes[dark].cut(true);
                Some(dark)
            }
        };
        next.at = now + Duration::from_nanos(next.rng.below(2 * LONGEST_LEASE.as_nanos() as u64));
        let at = next.at;
        drop(next);
        self.at(at);
    }
}

/// Makes five nodes, each behind a network of its own with faults.
fn troubled_quorum(clock: &Clock, seed: u64, odds: Odds) -> Arc<dyn Backend> {
    let mut rng = Rng::new(seed);
    let node = |_| Arc::new(Chaos::new(Memory::new(), clock.clone(), rng.draw(), odds));
    let nodes: Vec<_> = (0..5).map(node).collect();
    let next = Mutex::new(Next { rng: rng.fork(), dark: None, at: clock.now() });
    Arc::new(Darkness { nodes: nodes.clone(), clock: clock.clone(), next }).at(clock.now());
    let nodes = nodes.into_iter().map(|node| node as Arc<dyn Backend>).collect();
    Arc::new(Quorum::new("quorum", nodes, clock.clone()).unwrap())
}

#[test]
fn seeds_of_a_quorum_of_troubled_nodes() {
    let mut grants = 0;
    let seeds = std::env::var("FENCEPOST_CASES").map_or(24, |cases| cases.parse().unwrap());
    for seed in 1..=seeds {
        let odds = if seed % 2 == 0 { Odds::BAD } else { Odds::NONE };
        let name = Setup::NAMES[seed as usize / 2 % 3];
        let mut setup = Setup::named(name).unwrap();
        setup.prompt = Duration::from_secs(20);
        setup.odds.delay = Odds::BAD.delay;
        let report = simulate(seed, &setup, &|clock| troubled_quorum(clock, seed, odds));
        // An entry that a release has not reached yet blocks others, which are not queued.
        let bad: Vec<_> =
            report.findings.iter().filter(|finding| finding.kind != Kind::UnjustifiedBusy).collect();
        assert!(report.ran == Ran::Done && bad.is_empty(), "{name} {seed}: {:?} {bad:#?}", report.ran);
        grants += report.grants;
    }
    assert!(grants > 200 * seeds, "{grants} grants");
}

#[test]
fn a_seed_replays_the_same_run() {
    for name in Setup::NAMES {
        let (first, second) = (run(name, 7), run(name, 7));
        assert_eq!(first.trace, second.trace);
        assert_eq!(first.steps, second.steps);
        assert_eq!(first.history.events(), second.history.events());
        assert_ne!(first.trace, run(name, 8).trace, "another seed is another run");
    }
}

/// Seeds that once had a finding, each with its reason.
#[test]
fn kept_seeds_stay_good() {
    let mut kept = 0;
    for line in
        include_str!("seeds.txt").lines().map(|line| line.split('#').next().unwrap_or_default().trim())
    {
        if let Some((name, seed)) = line.split_once(' ') {
            assert_eq!(good(name, seed.parse().unwrap()).ran, Ran::Done);
            kept += 1;
        }
    }
    assert!(kept >= 5, "the file of seeds was not read");
}
