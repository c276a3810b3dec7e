//! A million cycles under kill -9, SIGSTOP, bad networks and restarts of the server, judged by the checker.
//!
//! The run goes in segments, so that the checker's memory stays bounded: in each, processes of its own do their share on
//! the same locks of the same server while faults come at random. At its end everybody is let through, the history is
//! judged, and its tokens are compared with those of the segment before.

mod faults;
mod side;

pub(crate) use side::side;

use crate::client::{connect, runtime};
use crate::command::{Place, Wrapper};
use crate::crowd::PROCESSES;
use crate::figure::Measured;
use faults::{Far, Weather};
use fencepost_testkit::checker::{Promises, check};
use fencepost_testkit::history::{History, What};
use fencepost_testkit::redis::{Config, Redis};
use fencepost_testkit::sim::Rng;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tasks in each process, and the locks that all share.
const TASKS: usize = 16;
const LOCKS: usize = 8;
/// Cycles in a segment.
const SEGMENT: usize = 50_000;
const LEASE: Duration = Duration::from_secs(2);

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    // Its log is kept short: a restart reads all of it.
    let config = Config::new().durable().line("auto-aof-rewrite-min-size 16mb");
    let mut server = Redis::start(&config).expect("redis-server");
    let mut rng = Rng::new(seed);
    let (mut done, mut number, mut findings) = (0, 0, Vec::new());
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut weather = Weather::default();
    let start = Instant::now();
    while done < wanted && findings.is_empty() {
        let place = Place::new(&format!("torture-{number}"));
        segment(&mut server, &place, number, SEGMENT.min(wanted - done), &mut rng, &mut weather);
        done += judge(&place, &mut last, &mut findings);
        number += 1;
    }
    findings.extend(left(&server));
    let first = findings.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let note =
        format!("{done} cycles in {:.0} s, seed {seed}; {weather}{first}", start.elapsed().as_secs_f64());
    let figure = if done < wanted && findings.is_empty() { f64::NAN } else { findings.len() as f64 };
    Measured { figure, note }
}

/// Runs one segment to its end; the histories are in the place's folder.
fn segment(
    server: &mut Redis,
    place: &Place,
    number: u32,
    cycles: usize,
    rng: &mut Rng,
    weather: &mut Weather,
) {
    // Every process that was ever started has a number of its own.
    let mut names = (number * 1_000..).map(|name| name + 1);
    let mut far: Vec<Far> = (0..PROCESSES).map(|_| Far::start(server)).collect();
    for (seat, far) in far.iter_mut().enumerate() {
        far.seat(place, seat, names.next().unwrap_or_default(), server, cycles / PROCESSES);
    }
    let note = faults::notes(place);
    while far.iter().any(|far| !far.is_done(place, cycles / PROCESSES)) {
        weather.strike(
            server,
            &mut far,
            place,
            &note,
            rng,
            &mut || names.next().unwrap_or_default(),
            cycles / PROCESSES,
        );
    }
    for far in &mut far {
        far.finish();
    }
}

/// Judges a segment's history; the number of its cycles.
fn judge(place: &Place, last: &mut BTreeMap<String, u64>, findings: &mut Vec<String>) -> usize {
    let folder = std::fs::read_dir(place.file("")).expect("the histories");
    let files = folder
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "history"));
    let history = History::read(files).expect("histories that can be read");
    // A killed process leaves what it had for its lease; a server that restarts answers nobody meanwhile.
    let promises = Promises { linger: Duration::from_secs(10), complete: false, ..Promises::default() };
    findings.extend(check(&history, &promises).iter().map(ToString::to_string));
    let mut names = BTreeMap::new();
    let (mut cycles, mut tokens): (usize, BTreeMap<String, (u64, u64)>) = (0, BTreeMap::new());
    for event in history.events() {
        match &event.what {
            What::Asked { resource, .. } => drop(names.insert(event.by, resource.to_string())),
            What::Granted { token, .. } => {
                cycles += 1;
                let Some(name) = names.get(&event.by) else { continue };
                let range = tokens.entry(name.clone()).or_insert((*token, *token));
                *range = (range.0.min(*token), range.1.max(*token));
            }
            _ => {}
        }
    }
    for (name, (first, highest)) in tokens {
        let before = last.insert(name.clone(), highest).unwrap_or(0);
        if first <= before {
            findings.push(format!("token {first} of {name} after {before} in the segment before"));
        }
    }
    cycles
}

/// What is left once the leases of the dead are over.
fn left(server: &Redis) -> Vec<String> {
    let runtime = runtime();
    runtime.block_on(async {
        let locks = connect(&server.url()).await;
        let deadline = Instant::now() + LEASE + Duration::from_secs(10);
        loop {
            let mut left = Vec::new();
            for number in 0..LOCKS {
                let info = locks.inspect(&side::name(number)).await.expect("a server that answers");
                left.extend(info.claims.iter().map(|claim| format!("left: {claim:?}")));
            }
            if left.is_empty() || Instant::now() > deadline {
                let mut look = server.look();
                for key in look.keys("*") {
                    let ttl: i64 = look.ask(&["PTTL", &key]);
                    if ttl == -1 {
                        left.push(format!("left: the key {key} never expires"));
                    }
                }
                locks.close().await;
                return left;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

/// Starts one process.
fn launch(url: &str, place: &Place, seat: usize, name: u32, cycles: usize) -> Wrapper {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    let words = [name.to_string(), cycles.to_string()];
    command.args(["side-torture", url]).arg(place.file(&format!("{name}.history")));
    command.arg(place.file(&format!("{seat}.done"))).args(words).stdin(Stdio::null());
    let mut side = Wrapper::start(command);
    assert_eq!(side.line(), "ready");
    side
}
