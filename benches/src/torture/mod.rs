//! Cycles under kill -9 of clients and servers, SIGSTOP, and bad networks, judged by the checker.
//!
//! The run goes in segments, so that the checker's memory stays bounded: in each, processes of its own do their share on
//! the same locks of the same servers while faults come at random. At its end everybody is let through, the history is
//! judged, and its tokens are compared with those of the segment before.

mod far;
mod judge;
mod side;

pub(crate) use side::side;

use crate::client::{connect, runtime};
use crate::command::Place;
use crate::crowd::PROCESSES;
use crate::figure::Measured;
use far::Far;
use fencepost_core::ClaimInfo;
use fencepost_testkit::faults::Faults as _;
use fencepost_testkit::history::{Recorder, What};
use fencepost_testkit::sim::Rng;
use judge::Judge;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The lease that every process asks for.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The servers of an engine, and what can befall them.
pub(crate) trait Target {
    /// Cycles in a segment.
    const SEGMENT: usize;
    /// How long it keeps the grants of a process that shows no sign of life: a stop is longer than that now and then.
    const KEPT: Duration;
    /// How long what a killed process had may keep others waiting, whatever befalls the servers meanwhile.
    const LINGER: Duration;
    /// How many faults it has.
    const FAULTS: u64;

    /// Whether a lock ends with its session: the server frees it as soon as a connection is cut.
    fn holds_by_sessions(&self) -> bool {
        false
    }

    /// Where the servers listen.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The URL of clients that reach them by these hosts, which stand behind each other with commas.
    fn url(&self, hosts: &str) -> String;

    /// Lets one of its faults befall the servers and be over, and names it; nothing if they were spared.
    /// Notes when sessions end.
    fn strike(&mut self, fault: u64, span: Duration, rng: &mut Rng, notes: &Recorder)
    -> Option<&'static str>;

    /// Lists the claims that the servers have now, and what belongs to none of them.
    fn left(&self) -> Vec<String>;
}

/// The claims that the engine at `url` lists.
pub(crate) fn claims(url: &str) -> Vec<String> {
    listed(url, |_| true)
}

/// The holders that the engine at `url` lists.
#[cfg(feature = "object")]
pub(crate) fn holders(url: &str) -> Vec<String> {
    listed(url, ClaimInfo::holds)
}

fn listed(url: &str, is_meant: impl Fn(&ClaimInfo) -> bool) -> Vec<String> {
    runtime().block_on(async {
        let locks = connect(url).await;
        let mut claims = Vec::new();
        for name in (0..side::LOCKS).map(side::name).filter(|_| locks.capabilities().inspect) {
            let info = locks.inspect(&name).await.expect("a server that answers");
            let meant = info.claims.iter().filter(|claim| is_meant(claim));
            claims.extend(meant.map(|claim| format!("{claim:?}")));
        }
        locks.close().await;
        claims
    })
}

/// Returns what is left once the claims of killed processes have expired.
fn left_behind<T: Target>(target: &T) -> Vec<String> {
    let deadline = Instant::now() + T::KEPT + T::LINGER;
    loop {
        let left = target.left();
        if left.is_empty() || Instant::now() > deadline {
            return left.into_iter().map(|left| format!("left: {left}")).collect();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles<T: Target>(target: T, wanted: usize, seed: u64) -> Measured {
    let mut run = Run { target, rng: Rng::new(seed), weather: BTreeMap::new() };
    let (mut done, mut number, mut judge) = (0, 0, Judge::new(T::LINGER));
    let start = Instant::now();
    while done < wanted && judge.findings.is_empty() {
        let place = Place::new(&format!("torture-{number}"));
        run.segment(&place, number, T::SEGMENT.min(wanted - done));
        done += judge.hear(&place);
        number += 1;
        eprintln!("{done} cycles after {:.0} s: {:?}", start.elapsed().as_secs_f64(), run.weather);
    }
    let mut findings = judge.findings;
    findings.extend(left_behind(&run.target));
    let first = findings.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let weather: Vec<_> = run.weather.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let took = start.elapsed().as_secs_f64();
    let note = format!("{done} cycles in {took:.0} s, seed {seed}; {}{first}", weather.join(", "));
    let figure = if done < wanted && findings.is_empty() { f64::NAN } else { findings.len() as f64 };
    Measured { figure, note }
}

struct Run<T> {
    target: T,
    rng: Rng,
    /// How often each fault struck.
    weather: BTreeMap<&'static str, u32>,
}

impl<T: Target> Run<T> {
    /// Runs one segment to its end; the histories are in the place's folder.
    fn segment(&mut self, place: &Place, number: u32, cycles: usize) {
        // Every process that was ever started has a number of its own.
        let mut names = (number * 1_000..).map(|name| name + 1);
        let mut next = || names.next().unwrap_or_default();
        // At least one: with segments of no cycles the run would never end.
        let share = cycles.div_ceil(PROCESSES);
        let mut far: Vec<Far> =
            (0..PROCESSES).map(|seat| Far::start(&self.target, place, seat, share)).collect();
        for far in &mut far {
            far.seat(&self.target, next());
        }
        let notes = Recorder::to_file(0, place.file("faults.history")).expect("a file for the history");
        while far.iter().any(|far| !far.is_done()) {
            std::thread::sleep(Duration::from_millis(500 + self.rng.below(1_500)));
            let victim = &mut far[self.rng.below(PROCESSES as u64) as usize];
            if let Some(fault) = self.strike(victim, &notes, &mut next) {
                *self.weather.entry(fault).or_insert(0) += 1;
            }
            // One that could not connect has ended by itself.
            for far in &mut far {
                if far.has_ended() && !far.is_done() {
                    far.seat(&self.target, next());
                }
            }
        }
        for far in &mut far {
            far.finish();
        }
    }

    /// One fault: of a process, of its network, or else of the servers.
    fn strike(
        &mut self,
        victim: &mut Far,
        notes: &Recorder,
        mut next: impl FnMut() -> u32,
    ) -> Option<&'static str> {
        let rng = &mut self.rng;
        let span = Duration::from_millis(100 + rng.below(400));
        Some(match rng.below(7 + T::FAULTS) {
            0 | 1 if !victim.is_done() => {
                notes.note(victim.name(), What::Died);
                victim.kill();
                victim.seat(&self.target, next());
                "kills of clients"
            }
            2 if !victim.is_done() && !victim.has_ended() => {
                notes.note(victim.name(), What::Paused);
                // Past its lease, now and then.
                victim.pause(if rng.chance(300) { T::KEPT + span } else { span });
                notes.note(victim.name(), What::Resumed);
                "stops of clients"
            }
            3 | 4 => {
                let dark = rng.chance(500);
                if !dark && self.target.holds_by_sessions() {
                    // The server can see the end of a connection before its client does.
                    notes.note(0, What::SessionsEnded);
                }
                victim.trouble(span, |proxy| if dark { proxy.silence() } else { proxy.cut() });
                "cuts"
            }
            5 | 6 => {
                let by = Duration::from_millis(1 + rng.below(50));
                victim.trouble(span, |proxy| proxy.delay(by));
                "delays"
            }
            // The last one also stands for what cannot befall a process that is done.
            die => return self.target.strike(die.checked_sub(7).unwrap_or(T::FAULTS - 1), span, rng, notes),
        })
    }
}
