//! Handoffs over four processes, beside the driver's own lock; what they cost in requests.

use super::WARM;
use super::crowd::{in_line, ours, peer};
use super::server::{requests, start, url};
use crate::crowd::{self, Crowd, wait_until};
use crate::figure::{Figure, Measured, Named, Rounds};
use fencepost_testkit::zookeeper::ephemerals;

/// Lengths of the line.
pub(crate) const LINES: [usize; 3] = [16, 128, 1_000];
const ROUNDS: usize = 9;

fn drains(waiters: usize) -> usize {
    (800 / waiters).clamp(1, 20)
}

/// Handoffs per second with so many waiters.
pub(crate) fn rate(waiters: usize) -> Figure {
    let server = start();
    let mut theirs = Crowd::gather(waiters, || peer(&server));
    let mut crowd = Crowd::gather(waiters, || ours(&server));
    let mut measure = |way| {
        let (mut handoffs, mut seconds) = (0.0, 0.0);
        for _ in 0..drains(waiters) {
            let side = if way == 0 { &mut theirs } else { &mut crowd };
            let drained = side.drain(|count| in_line(&server, count));
            handoffs += drained.handoffs();
            seconds += drained.seconds();
            // Theirs deletes the last node in the background.
            wait_until("the line is empty", || {
                let all = ephemerals(server.address()).expect("a server that answers");
                !all.iter().any(|path| path.contains("-lock-"))
            });
        }
        handoffs / seconds
    };
    for round in 0..WARM / (drains(waiters) * waiters) {
        measure(round % 2);
    }
    let rounds = Rounds::run(ROUNDS, 2, measure);
    drop((theirs, crowd));
    let figure = match waiters {
        16 => "handoffs, 16 waiters in 4 processes",
        128 => "handoffs, 128 waiters in 4 processes",
        _ => "handoffs, 1,000 waiters in 4 processes",
    };
    Figure {
        engine: "zookeeper",
        figure,
        unit: "1/s",
        floor: Named { name: "zookeeper-client's lock", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≥ 1.3 ×",
        peers: Vec::new(),
    }
}

/// The same beside other libraries.
pub(crate) fn beside_peers(waiters: usize) -> Figure {
    Figure { peers: super::peers::drain(waiters), ..rate(waiters) }
}

/// Counts the requests of a contended cycle with 128 waiters. `watch`: how clients watch their folders.
pub(crate) fn commands(watch: &str) -> Measured {
    let waiters = 128;
    let server = start();
    let mut crowd = Crowd::gather(waiters, || crowd::ours(&format!("{}?watch={watch}", url(&server))));
    crowd.drain(|count| in_line(&server, count));
    let before = requests(&server);
    let (mut cycles, rounds) = (0.0, 5);
    for _ in 0..rounds {
        cycles += crowd.drain(|count| in_line(&server, count)).handoffs() + 1.0;
    }
    let sent = requests(&server) - before;
    let figure = (sent / cycles * 100.0).round() / 100.0;
    Measured {
        figure,
        note: format!("{cycles} cycles in {rounds} drains: {sent} requests, looks and pings among them"),
    }
}

/// The rate with 1,000 waiters as a part of that with 16.
pub(crate) fn steady() -> Measured {
    let (few, many) = (rate(16), rate(1_000));
    let note = format!("{:.0} handoffs a second with 1,000 waiters, {:.0} with 16", many.ours, few.ours);
    Measured { figure: many.ours / few.ours, note }
}
