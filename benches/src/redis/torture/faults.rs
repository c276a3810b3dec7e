//! What is done to the processes, their networks and the server.

use super::launch;
use crate::command::{Place, Wrapper};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::history::{Recorder, What};
use fencepost_testkit::redis::Redis;
use fencepost_testkit::server::Proxy;
use fencepost_testkit::sim::Rng;
use nix::sys::signal::{Signal, kill};
use std::fmt;
use std::time::Duration;

/// How often each fault struck.
#[derive(Default)]
pub(super) struct Weather {
    kills: u32,
    stops: u32,
    cuts: u32,
    delays: u32,
    restarts: u32,
}

/// One process behind a network of its own.
pub(super) struct Far {
    proxy: Proxy,
    process: Option<Wrapper>,
    seat: usize,
    name: u32,
}

impl Far {
    /// A network to the server, with nobody behind it yet.
    pub(super) fn start(server: &Redis) -> Far {
        Far { proxy: Proxy::start(server.address()).expect("a proxy"), process: None, seat: 0, name: 0 }
    }

    /// Seats a process behind it.
    pub(super) fn seat(&mut self, place: &Place, seat: usize, name: u32, server: &Redis, cycles: usize) {
        (self.seat, self.name) = (seat, name);
        self.process = Some(launch(&server.url_at(self.proxy.address()), place, seat, name, cycles));
    }

    /// Whether its seat has done its share.
    pub(super) fn is_done(&self, place: &Place, cycles: usize) -> bool {
        let tally = std::fs::metadata(place.file(&format!("{}.done", self.seat)))
            .map_or(0, |meta| meta.len() as usize * 100);
        // The rest of a hundred that a killed process had begun is done again.
        tally + 100 > cycles
    }

    /// Lets the process end by itself.
    pub(super) fn finish(&mut self) {
        let _ = self.proxy.mend();
        if let Some(mut process) = self.process.take() {
            process.wait();
        }
    }
}

/// Where the faults are written down.
pub(super) fn notes(place: &Place) -> Recorder {
    Recorder::to_file(0, place.file("faults.history")).expect("a file for the history")
}

impl Weather {
    /// Lets a quiet moment pass, then strikes once.
    #[allow(clippy::too_many_arguments, reason = "the whole scene is here, and only here")]
    pub(super) fn strike(
        &mut self,
        server: &mut Redis,
        far: &mut [Far],
        place: &Place,
        notes: &Recorder,
        rng: &mut Rng,
        next: &mut dyn FnMut() -> u32,
        cycles: usize,
    ) {
        std::thread::sleep(Duration::from_millis(500 + rng.below(1_500)));
        let at = rng.below(far.len() as u64) as usize;
        let victim = &mut far[at];
        let span = Duration::from_millis(100 + rng.below(400));
        match rng.below(8) {
            0 | 1 if !victim.is_done(place, cycles) => {
                self.kills += 1;
                notes.note(victim.name, What::Died);
                if let Some(mut process) = victim.process.take() {
                    process.kill();
                }
                victim.seat(place, victim.seat, next(), server, cycles);
            }
            2 if !victim.is_done(place, cycles) => {
                self.stops += 1;
                let Some(pid) = victim.process.as_ref().map(Wrapper::pid) else { return };
                notes.note(victim.name, What::Paused);
                let _ = kill(pid, Signal::SIGSTOP);
                // Past its lease, now and then.
                std::thread::sleep(if rng.chance(300) { super::LEASE + span } else { span });
                let _ = kill(pid, Signal::SIGCONT);
                notes.note(victim.name, What::Resumed);
            }
            3 | 4 => {
                self.cuts += 1;
                let _ = if rng.chance(500) { victim.proxy.cut() } else { victim.proxy.silence() };
                std::thread::sleep(span);
                let _ = victim.proxy.mend();
            }
            5 | 6 => {
                self.delays += 1;
                let _ = victim.proxy.delay(Duration::from_millis(1 + rng.below(50)));
                std::thread::sleep(span);
                let _ = victim.proxy.mend();
            }
            _ if rng.chance(500) => {
                self.restarts += 1;
                server.kill().expect("a server that can be killed");
                server.restart().expect("a server that starts again");
            }
            _ => {}
        }
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weather { kills, stops, cuts, delays, restarts } = self;
        write!(
            f,
            "{kills} kills, {stops} stops, {cuts} cuts, {delays} delays, {restarts} restarts of the server"
        )
    }
}
