//! Handoffs of other libraries, fencepost and the floor, all measured in the same way: in processes that are warm. A virtual machine that has
//! just been started says more about its compiler than about its lock.

use crate::client::NAME;
use crate::crowd::{Crowd, ours};
use crate::handoff::Line;
use crate::peers::{self, Peer};
use crate::{etcd, host, redis};
use fencepost_testkit::zookeeper::ZooKeeper;
use serde::Serialize;
use std::process::Command;
use std::time::Duration;

/// Those who want the lock.
const WAITERS: usize = 16;
/// They are spread over so many processes.
const PROCESSES: [usize; 2] = [1, 4];
/// Seconds of load before anything is measured.
pub(crate) const WARM: u64 = 3;
/// Seconds of the closed loop.
const SPAN: u64 = 3;
/// How often a line drains.
const DRAINS: usize = 3;
/// A line that took longer than this many seconds drains once.
const LONG: f64 = 3.0;

/// The figures of one library. They are in the order of [`PROCESSES`], in handoffs a second; not a number where there is none.
#[derive(Serialize)]
pub(crate) struct Row {
    engine: &'static str,
    name: &'static str,
    version: String,
    closed: [f64; 2],
    drained: [f64; 2],
}

/// Measures all that are here, and passes each row on when it is complete.
pub(crate) fn rows(mut done: impl FnMut(&Row)) {
    rows_of::<redis::Observed>(&mut done);
    rows_of::<ZooKeeper>(&mut done);
    rows_of::<etcd::Observed>(&mut done);
}

fn rows_of<L: Line>(mut done: impl FnMut(&Row)) {
    done(&row(L::FLOOR, host::version(L::DRIVER), L::floor));
    done(&row("fencepost", host::version("fencepost-core"), |line: &L| ours(&line.client_url())));
    for Peer { name, file, .. } in L::PEERS.iter().filter(|peer| peer.is_there()) {
        let version = peers::version(file).map(|version| format!("{name} {version}"));
        let command = |line: &L| peers::program(file, &["drain", &line.peer_url(), NAME]);
        done(&row(name, version, |line| command(line).expect("it was there just now")));
    }
}

/// Each measurement has a server of its own.
fn row<L: Line>(name: &'static str, version: Option<String>, command: impl Fn(&L) -> Command) -> Row {
    let measured = PROCESSES.map(|processes| {
        let line = L::start();
        measure(processes, || command(&line)).unwrap_or((f64::NAN, f64::NAN))
    });
    let (closed, drained) = (measured.map(|(closed, _)| closed), measured.map(|(_, drained)| drained));
    Row { engine: L::ENGINE, name, version: version.unwrap_or_default(), closed, drained }
}

/// Handoffs a second in a closed loop, and of lines that drain.
fn measure(processes: usize, command: impl Fn() -> Command) -> Option<(f64, f64)> {
    let mut crowd = Crowd::try_of(processes, WAITERS, command)?;
    crowd.try_load(WARM)?;
    let closed = crowd.try_load(SPAN)? / SPAN as f64;
    let (mut handoffs, mut seconds) = (0.0, 0.0);
    for _ in 0..DRAINS {
        // The lines of most peers cannot be looked at: after a second each waiter has asked.
        let drained = crowd.try_drain(|_| std::thread::sleep(Duration::from_secs(1)))?;
        if drained.waits.len() < WAITERS {
            return Some((closed, f64::NAN));
        }
        handoffs += drained.handoffs();
        seconds += drained.seconds();
        if seconds > LONG {
            break;
        }
    }
    Some((closed, handoffs / seconds))
}
