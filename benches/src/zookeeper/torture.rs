//! Cycles under kill -9 of clients, servers and the leader, SIGSTOP, and bad networks, judged by the checker.
//!
//! The run goes in segments, so that the checker's memory stays bounded: in each, processes of its own do their share on the
//! same locks of the same ensemble while faults come at random. At its end everybody is let through, the history is judged, and
//! its tokens are compared with those of the segment before.

use crate::command::{Place, Wrapper};
use crate::figure::Measured;
use fencepost_testkit::checker::{Promises, check};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::{History, Recorder, What};
use fencepost_testkit::server::Proxy;
use fencepost_testkit::sim::Rng;
use fencepost_testkit::zookeeper::{Config, Ensemble, ephemerals};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
/// Cycles in a segment.
const SEGMENT: usize = 20_000;
/// All sessions.
const SESSION: Duration = Duration::from_secs(3);
/// The path of nodes.
const PATH: &str = "/torture";

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    let mut ensemble = Ensemble::start(&Config::new().fast()).expect("ZooKeeper");
    let mut rng = Rng::new(seed);
    let (mut done, mut number, mut findings) = (0, 0, Vec::new());
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut weather = BTreeMap::new();
    let start = Instant::now();
    while done < wanted && findings.is_empty() {
        let place = Place::new(&format!("zoo-torture-{number}"));
        segment(&mut ensemble, &place, number, SEGMENT.min(wanted - done), &mut rng, &mut weather);
        done += judge(&place, &mut last, &mut findings);
        number += 1;
        eprintln!("{done} cycles after {:.0} s: {weather:?}", start.elapsed().as_secs_f64());
    }
    findings.extend(left(&ensemble));
    let first = findings.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let weather: Vec<_> = weather.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let note = format!(
        "{done} cycles in {:.0} s, seed {seed}; {}{first}",
        start.elapsed().as_secs_f64(),
        weather.join(", ")
    );
    let figure = if done < wanted && findings.is_empty() { f64::NAN } else { findings.len() as f64 };
    Measured { figure, note }
}

/// One process behind a network of its own to all servers.
struct Far {
    proxies: Vec<Proxy>,
    process: Option<Wrapper>,
    seat: usize,
    name: u32,
}

impl Far {
    fn seat(&mut self, place: &Place, seat: usize, name: u32, cycles: usize) {
        (self.seat, self.name) = (seat, name);
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let url = format!("zookeeper://{}{PATH}?session={}ms", hosts.join(","), SESSION.as_millis());
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args(["side-torture", &url]).arg(place.file(&format!("{name}.history")));
        command.arg(place.file(&format!("{seat}.done"))).args([name.to_string(), cycles.to_string()]);
        let mut side = Wrapper::start({
            command.stdin(Stdio::null());
            command
        });
        assert_eq!(side.line(), "ready");
        self.process = Some(side);
    }

    /// Whether its seat has done its share.
    fn is_done(&self, place: &Place, cycles: usize) -> bool {
        let file = place.file(&format!("{}.done", self.seat));
        // The rest of a hundred that a killed process had begun is done again.
        std::fs::metadata(file).map_or(0, |meta| meta.len() as usize * 100) + 100 > cycles
    }

    fn ended(&mut self) -> bool {
        self.process.as_ref().is_none_or(|process| !crate::usage::alive(process.pid().as_raw()))
    }

    fn each(&mut self, mut change: impl FnMut(&mut Proxy)) {
        self.proxies.iter_mut().for_each(&mut change);
    }
}

/// Runs one segment to its end; the histories are in the place's folder.
fn segment(
    ensemble: &mut Ensemble,
    place: &Place,
    number: u32,
    cycles: usize,
    rng: &mut Rng,
    weather: &mut BTreeMap<&'static str, u32>,
) {
    // Every process that was ever started has a number of its own.
    let mut names = (number * 1_000..).map(|name| name + 1);
    let mut next = || names.next().unwrap_or_default();
    let share = cycles / PROCESSES;
    let mut far: Vec<Far> = (0..PROCESSES)
        .map(|seat| {
            let proxies = ensemble.addresses().into_iter().map(|at| Proxy::start(at).expect("a proxy"));
            let mut far = Far { proxies: proxies.collect(), process: None, seat, name: 0 };
            far.seat(place, seat, next(), share);
            far
        })
        .collect();
    let notes = Recorder::to_file(0, place.file("faults.history")).expect("a file for the history");
    while far.iter().any(|far| !far.is_done(place, share)) {
        std::thread::sleep(Duration::from_millis(500 + rng.below(1_500)));
        let at = rng.below(PROCESSES as u64) as usize;
        let victim = &mut far[at];
        let span = Duration::from_millis(100 + rng.below(400));
        let fault = match rng.below(9) {
            0 | 1 if !victim.is_done(place, share) => {
                notes.note(victim.name, What::Died);
                if let Some(mut process) = victim.process.take() {
                    process.kill();
                }
                victim.seat(place, victim.seat, next(), share);
                "kills of clients"
            }
            2 if !victim.is_done(place, share) => {
                let Some(pid) = victim.process.as_ref().map(Wrapper::pid) else { continue };
                notes.note(victim.name, What::Paused);
                let _ = kill(pid, Signal::SIGSTOP);
                // Past its session, now and then.
                std::thread::sleep(if rng.chance(300) { SESSION + span } else { span });
                let _ = kill(pid, Signal::SIGCONT);
                notes.note(victim.name, What::Resumed);
                "stops of clients"
            }
            3 | 4 => {
                let dark = rng.chance(500);
                victim.each(|proxy| drop(if dark { proxy.silence() } else { proxy.cut() }));
                std::thread::sleep(span);
                victim.each(|proxy| drop(proxy.mend()));
                "cuts"
            }
            5 | 6 => {
                let by = Duration::from_millis(1 + rng.below(50));
                victim.each(|proxy| drop(proxy.delay(by)));
                std::thread::sleep(span);
                victim.each(|proxy| drop(proxy.mend()));
                "delays"
            }
            7 => {
                ensemble.kill().expect("a leader that can be killed");
                std::thread::sleep(span);
                ensemble.restart().expect("a server that starts again");
                "kills of the leader"
            }
            _ => {
                let index = rng.below(3) as usize;
                ensemble.node(index).kill().expect("a server that can be killed");
                ensemble.node(index).restart().expect("a server that starts again");
                ensemble.settled().expect("an ensemble that comes back");
                "kills of a server"
            }
        };
        *weather.entry(fault).or_insert(0) += 1;
        // One that could not connect has ended by itself.
        for far in &mut far {
            if far.ended() && !far.is_done(place, share) {
                far.seat(place, far.seat, next(), share);
            }
        }
    }
    for far in &mut far {
        far.each(|proxy| drop(proxy.mend()));
        if let Some(mut process) = far.process.take() {
            process.wait();
        }
    }
}

/// Judges a segment's history; the number of its cycles.
pub(crate) fn judge(place: &Place, last: &mut BTreeMap<String, u64>, findings: &mut Vec<String>) -> usize {
    let folder = std::fs::read_dir(place.file("")).expect("the histories");
    let files = folder.flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "history"));
    let history = History::read(files).expect("histories that can be read");
    // A killed process leaves what it had for its session; an ensemble without a leader answers nobody meanwhile.
    let promises = Promises { linger: Duration::from_secs(15), complete: false, ..Promises::default() };
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

/// What is left once the sessions of the dead are over.
fn left(ensemble: &Ensemble) -> Vec<String> {
    let deadline = Instant::now() + SESSION + Duration::from_secs(10);
    loop {
        let all = ephemerals(ensemble.addresses()[0]).expect("a server that answers");
        let left: Vec<_> = all
            .into_iter()
            .filter(|path| path.starts_with(PATH))
            .map(|path| format!("left: {path}"))
            .collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
