//! Handoffs over four processes, beside BLPOP; what they cost the server; how long one waits.

use super::monitor::{Monitor, count};
use super::observer::Observer;
use super::peers;
use super::server::{Auditor, start};
use crate::client::NAME;
use crate::crowd::{Crowd, Drained, ours, wait_until};
use crate::figure::{Figure, Measured, Named, Rounds};
use crate::side::program;
use fencepost_testkit::redis::Redis;

/// Lengths of the line.
pub(crate) const LINES: [usize; 3] = [16, 128, 1_000];
/// Runs of each way; their median counts.
const ROUNDS: usize = 3;

/// How often a run lets a line of this length drain: a short one is over before the clock can tell.
fn drains(waiters: usize) -> usize {
    (1_600 / waiters).clamp(3, 50)
}

/// Handoffs per second with so many waiters.
pub(crate) fn rate(waiters: usize) -> Figure {
    let server = start();
    let mut observer = Observer::of(&server);
    let mut bare = Crowd::gather(waiters, || program(&["redis-side-floor", &server.url(), NAME]));
    let mut crowd = Crowd::gather(waiters, || ours(&server.url()));
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        let (mut handoffs, mut seconds) = (0.0, 0.0);
        for _ in 0..drains(waiters) {
            let drained = match way {
                0 => bare.drain(|count| observer.blocked(count)),
                _ => crowd.drain(|count| observer.in_line(count)),
            };
            handoffs += drained.handoffs();
            seconds += drained.seconds();
        }
        handoffs / seconds
    });
    drop((bare, crowd));
    let figure = match waiters {
        16 => "handoffs, 16 waiters in 4 processes",
        128 => "handoffs, 128 waiters in 4 processes",
        _ => "handoffs, 1,000 waiters in 4 processes",
    };
    Figure {
        engine: "redis",
        figure,
        unit: "1/s",
        floor: Named { name: "BLPOP and LPUSH", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≥ 0.5 ×",
        peers: Vec::new(),
    }
}

/// The same beside other libraries.
pub(crate) fn beside_peers(waiters: usize) -> Figure {
    Figure { peers: peers::drain(waiters), ..rate(waiters) }
}

/// Counts the commands that clients send for a contended cycle: the worst of all queue lengths.
pub(crate) fn commands() -> Measured {
    worst(|waiters| {
        let server = start();
        let mut auditor = Auditor::of(&server);
        let mut crowd = Crowd::gather(waiters, || ours(&server.url()));
        let mut drain = |auditor: &mut Auditor| {
            crowd.drain(|count| {
                // Each has asked once, and so has the holder; nobody looks, because a look is a command, too.
                wait_until("all had asked", || auditor.scripts().calls > count as f64);
            })
        };
        // Scripts are loaded now.
        drain(&mut auditor);
        auditor.reset();
        let monitor = Monitor::of(&server.url());
        let mut cycles = 0.0;
        for _ in 0..3 {
            cycles += drain(&mut auditor).handoffs() + 1.0;
            if auditor.scripts().calls < 2.0 * cycles {
                wait_until("all had released", || auditor.scripts().calls >= 2.0 * cycles);
            }
        }
        let (sent, which) = count(&monitor.end());
        (sent / cycles, format!("{waiters} waiters: {:.3} ({which})", sent / cycles))
    })
}

/// Server time of a script in µs, at worst over the lengths of the line.
pub(crate) fn script() -> Measured {
    worst(|waiters| {
        let (_server, auditor, _) = &mut drained(waiters);
        let count = auditor.scripts();
        (count.usec, format!("{waiters} waiters: {:.1} µs over {} calls", count.usec, count.calls))
    })
}

/// The longest wait as a multiple of the mean, at worst over the lengths of the line.
pub(crate) fn longest() -> Measured {
    worst(|waiters| {
        let (_server, _, all) = drained(waiters);
        // The median over the drains: one late wakeup of a process is the machine's.
        let longest = crate::figure::median(all.iter().map(Drained::longest).collect());
        (longest, format!("{waiters} waiters: {longest:.2} ×"))
    })
}

/// Lines of this length that have drained, and who has counted.
fn drained(waiters: usize) -> (Redis, Auditor, Vec<Drained>) {
    let server = start();
    let observer = Observer::of(&server);
    let mut crowd = Crowd::gather(waiters, || ours(&server.url()));
    crowd.drain(|count| observer.in_line(count));
    let mut auditor = Auditor::of(&server);
    auditor.reset();
    let all = (0..drains(waiters)).map(|_| crowd.drain(|count| observer.in_line(count))).collect();
    drop((crowd, observer));
    (server, auditor, all)
}

fn worst(measure: impl FnMut(usize) -> (f64, String)) -> Measured {
    let (figures, notes): (Vec<f64>, Vec<String>) = LINES.into_iter().map(measure).unzip();
    Measured { figure: figures.into_iter().fold(0.0, f64::max), note: notes.join("; ") }
}
