//! Handoffs of lines that drain, beside the same by hand over the bare driver: everybody waits, and the lock passes through all.
//!
//! The closed loop of the SQL servers is another measurement: there the line never drains.

use crate::crowd::{Crowd, Drained, PROCESSES, ours};
use crate::cycle::Counted;
use crate::figure::{Figure, Measured, Rounds, Row, median};
use crate::peers::{self, Peer};
use std::process::Command;

/// Lengths of the line.
pub(crate) const LINES: [usize; 3] = [16, 128, 1_000];

/// How often lines drain.
pub(crate) struct Counts {
    pub(crate) rounds: usize,
    /// Handoffs of each way in a round.
    pub(crate) handoffs: usize,
    /// How often a line drains for them: a short one is over before the clock can tell.
    pub(crate) drains: (usize, usize),
    /// Handoffs before one counts.
    pub(crate) warm: usize,
}

/// A server at which lines form, and what is measured beside fencepost.
pub(crate) trait Line: Counted {
    const ENGINE: &'static str;
    /// The floor, and its driver as Cargo.lock names it.
    const FLOOR: &'static str;
    const DRIVER: &'static str;
    const BAR: &'static str;
    const COUNTS: Counts;
    const PEERS: &'static [Peer];

    /// Starts a server.
    fn start() -> Self;

    /// A process of the floor.
    fn floor(&self) -> Command;

    /// The URL for other libraries.
    fn peer_url(&self) -> String;

    /// Waits until so many, in so many processes, wait for the lock of the floor (way 0) or for ours (way 1).
    fn wait_for(&self, way: usize, waiting: usize, processes: usize);

    /// The same of another library's lock.
    fn wait_for_peers(&self, waiting: usize);

    /// Waits until nobody claims a lock: a driver may give back the last one in the background.
    fn wait_until_empty(&self) {}
}

/// Handoffs a second with so many waiters in so many processes.
pub(crate) fn rate<L: Line>(waiters: usize, processes: usize) -> Figure {
    let (line, drains) = (L::start(), drains::<L>(waiters));
    let floor = Crowd::of(processes, waiters, || line.floor());
    let mut ways = [floor, Crowd::of(processes, waiters, || ours(&line.client_url()))];
    let mut measure = |way: usize| {
        let (mut handoffs, mut seconds) = (0.0, 0.0);
        for _ in 0..drains {
            let drained = ways[way].drain(|waiting| line.wait_for(way, waiting, processes));
            handoffs += drained.handoffs();
            seconds += drained.seconds();
            line.wait_until_empty();
        }
        handoffs / seconds
    };
    for round in 0..L::COUNTS.warm / (drains * waiters) {
        measure(round % 2);
    }
    let rounds = Rounds::run(L::COUNTS.rounds, 2, measure);
    drop(ways);
    let bar = if processes == PROCESSES { L::BAR } else { "" };
    let figure = name(waiters, processes);
    Row { engine: L::ENGINE, figure, unit: "1/s", floor: L::FLOOR, bar }.of(&rounds, 1)
}

/// The same in four processes, beside other libraries.
pub(crate) fn beside_peers<L: Line>(waiters: usize) -> Figure {
    Figure { peers: peers::drain::<L>(waiters), ..rate::<L>(waiters, PROCESSES) }
}

/// The rows of the table with four processes.
pub(crate) fn figures<L: Line>() -> [Figure; LINES.len()] {
    LINES.map(|waiters| rate::<L>(waiters, PROCESSES))
}

/// The rate with 1,000 waiters as a part of that with 16.
pub(crate) fn steady<L: Line>() -> Measured {
    let (few, many) = (rate::<L>(16, PROCESSES), rate::<L>(1_000, PROCESSES));
    let note = format!("{:.0} handoffs a second with 1,000 waiters, {:.0} with 16", many.ours, few.ours);
    Measured { figure: many.ours / few.ours, note }
}

/// Counts the requests of a contended cycle, at worst of these lengths of the line. Clients have these options in their URL.
pub(crate) fn requests<L: Line>(lines: &[usize], options: &str) -> Measured {
    worst(lines, |waiters| {
        let line = L::start();
        let url = format!("{}{options}", line.client_url());
        let mut crowd = Crowd::gather(waiters, || ours(&url));
        // The holder of each drain has its cycle as well.
        let mut drain = || crowd.drain(|waiting| line.wait_for(1, waiting, PROCESSES)).handoffs() + 1.0;
        // Scripts are loaded now, and connections made.
        drain();
        let mut cycles = 0.0;
        let (sent, which) = line.sent(|| (0..drains::<L>(waiters).max(3)).for_each(|_| cycles += drain()));
        let each = (sent / cycles * 100.0).round() / 100.0;
        (each, format!("{waiters} waiters: {:.3} ({which})", sent / cycles))
    })
}

/// The longest wait as a multiple of the mean, at worst over the lengths of the line.
pub(crate) fn longest<L: Line>() -> Measured {
    worst(&LINES, |waiters| {
        // The median over the drains: one late wakeup of a process is the machine's.
        let longest = median(drained(&L::start(), waiters).iter().map(Drained::longest).collect());
        (longest, format!("{waiters} waiters: {longest:.2} ×"))
    })
}

/// The longest time between two grants of a drain, in ms: the median over the drains.
pub(crate) fn longest_step<L: Line>(waiters: usize) -> Measured {
    let all = drained(&L::start(), waiters);
    let (handoffs, seconds): (f64, f64) =
        (all.iter().map(Drained::handoffs).sum(), all.iter().map(Drained::seconds).sum());
    let figure = median(all.iter().map(Drained::longest_step).collect());
    let rate = handoffs / seconds;
    Measured { figure, note: format!("{waiters} waiters in 4 processes at {rate:.0} handoffs a second") }
}

/// As many drains of ours as there are in a round.
pub(crate) fn drained<L: Line>(line: &L, waiters: usize) -> Vec<Drained> {
    let mut crowd = Crowd::gather(waiters, || ours(&line.client_url()));
    let mut drain = || crowd.drain(|waiting| line.wait_for(1, waiting, PROCESSES));
    drain();
    (0..drains::<L>(waiters)).map(|_| drain()).collect()
}

/// The worst of these lengths of the line.
pub(crate) fn worst(lines: &[usize], measure: impl FnMut(usize) -> (f64, String)) -> Measured {
    let (figures, notes): (Vec<f64>, Vec<String>) = lines.iter().copied().map(measure).unzip();
    Measured { figure: figures.into_iter().fold(0.0, f64::max), note: notes.join("; ") }
}

/// The name of a row.
pub(crate) fn name(waiters: usize, processes: usize) -> &'static str {
    let waiters = if waiters == 1_000 { "1,000".to_owned() } else { waiters.to_string() };
    // There are few rows in a run of this program.
    format!("handoffs, {waiters} waiters in {processes} processes").leak()
}

fn drains<L: Line>(waiters: usize) -> usize {
    let Counts { handoffs, drains: (least, most), .. } = L::COUNTS;
    (handoffs / waiters).clamp(least, most)
}
