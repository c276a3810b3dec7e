//! Cycles under kill -9 of clients, members and the leader, SIGSTOP, and bad networks, judged by the checker.

use crate::command::{Place, Wrapper};
use crate::figure::Measured;
use crate::zookeeper::torture::judge;
use fencepost_testkit::etcd::{Cluster, Config};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::{Recorder, What};
use fencepost_testkit::server::Proxy;
use fencepost_testkit::sim::Rng;
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
/// Cycles in a segment: the checker's memory stays bounded.
const SEGMENT: usize = 20_000;
/// All leases.
const LEASE: Duration = Duration::from_secs(2);

/// Counts what the checker finds over so many cycles, and what is left at the end.
pub(crate) fn cycles(wanted: usize, seed: u64) -> Measured {
    let mut cluster = Cluster::start(&Config::new().heartbeat(50).in_memory()).expect("etcd");
    let mut rng = Rng::new(seed);
    let (mut done, mut number, mut findings) = (0, 0, Vec::new());
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut weather = BTreeMap::new();
    let start = Instant::now();
    while done < wanted && findings.is_empty() {
        let place = Place::new(&format!("etcd-torture-{number}"));
        segment(&mut cluster, &place, number, SEGMENT.min(wanted - done), &mut rng, &mut weather);
        done += judge(&place, &mut last, &mut findings);
        number += 1;
        eprintln!("{done} cycles after {:.0} s: {weather:?}", start.elapsed().as_secs_f64());
    }
    findings.extend(left(&cluster));
    let first = findings.first().map_or_else(String::new, |first| format!("; first: {first}"));
    let weather: Vec<_> = weather.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let took = start.elapsed().as_secs_f64();
    let note = format!("{done} cycles in {took:.0} s, seed {seed}; {}{first}", weather.join(", "));
    let figure = if done < wanted && findings.is_empty() { f64::NAN } else { findings.len() as f64 };
    Measured { figure, note }
}

/// One process behind a network of its own to all members.
struct Far {
    proxies: Vec<Proxy>,
    process: Option<Wrapper>,
    seat: usize,
    name: u32,
}

impl Far {
    fn seat(&mut self, place: &Place, name: u32, cycles: usize) {
        self.name = name;
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        // The side of Redis is that of any URL.
        command.args(["side-torture", &format!("etcd://{}", hosts.join(","))]);
        command.arg(place.file(&format!("{name}.history"))).arg(place.file(&format!("{}.done", self.seat)));
        command.args([name.to_string(), cycles.to_string()]).stdin(Stdio::null());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "ready");
        self.process = Some(side);
    }

    /// Whether its seat has done its share.
    fn is_done(&self, place: &Place, cycles: usize) -> bool {
        let file = place.file(&format!("{}.done", self.seat));
        // The rest of a hundred that a killed process had begun is done again.
        std::fs::metadata(file).map_or(0, |meta| meta.len() as usize * 100) + 100 > cycles
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|process| !crate::usage::alive(process.pid().as_raw()))
    }

    fn each(&mut self, change: impl FnMut(&mut Proxy)) {
        self.proxies.iter_mut().for_each(change);
    }
}

/// Runs one segment to its end; the histories are in the place's folder.
fn segment(
    cluster: &mut Cluster,
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
            let proxies = cluster.addresses().into_iter().map(|at| Proxy::start(at).expect("a proxy"));
            let mut far = Far { proxies: proxies.collect(), process: None, seat, name: 0 };
            far.seat(place, next(), share);
            far
        })
        .collect();
    let notes = Recorder::to_file(0, place.file("faults.history")).expect("a file for the history");
    while far.iter().any(|far| !far.is_done(place, share)) {
        std::thread::sleep(Duration::from_millis(500 + rng.below(1_500)));
        let victim = &mut far[rng.below(PROCESSES as u64) as usize];
        let span = Duration::from_millis(100 + rng.below(400));
        let fault = match rng.below(9) {
            0 | 1 if !victim.is_done(place, share) => {
                notes.note(victim.name, What::Died);
                if let Some(mut process) = victim.process.take() {
                    process.kill();
                }
                victim.seat(place, next(), share);
                "kills of clients"
            }
            2 if !victim.is_done(place, share) && !victim.has_ended() => {
                let Some(pid) = victim.process.as_ref().map(Wrapper::pid) else { continue };
                notes.note(victim.name, What::Paused);
                let _ = kill(pid, Signal::SIGSTOP);
                // Past its lease, now and then.
                std::thread::sleep(if rng.chance(300) { LEASE + span } else { span });
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
            // A leader that is stopped for longer than a lease revokes what is alive when it wakes (etcd before 3.4.25).
            7 => {
                cluster.kill().expect("a leader that can be killed");
                std::thread::sleep(span);
                cluster.restart().expect("a member that starts again");
                "kills of the leader"
            }
            _ => {
                let member = rng.below(3) as usize;
                cluster.trouble(member, |server, _| server.restart()).expect("a member that starts again");
                cluster.settle().expect("a cluster that comes back");
                "kills of a member"
            }
        };
        *weather.entry(fault).or_insert(0) += 1;
        // One that could not connect has ended by itself.
        for far in &mut far {
            if far.has_ended() && !far.is_done(place, share) {
                far.seat(place, next(), share);
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

/// What is left once the leases of the dead are over.
fn left(cluster: &Cluster) -> Vec<String> {
    let deadline = Instant::now() + LEASE + Duration::from_secs(10);
    loop {
        let look = cluster.look();
        let keys = look.keys("").into_iter().map(|key| format!("left: the key {key}"));
        let left: Vec<_> =
            keys.chain(look.leases().into_iter().map(|lease| format!("left: the lease {lease}"))).collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
