//! Handoffs of other libraries, fencepost and the floor, all measured in the same way: in processes that are warm. A virtual machine that has
//! just been started says more about its compiler than about its lock.

use crate::crowd::{Crowd, ours};
use crate::side;
use crate::{etcd, host, redis, zookeeper};
use serde::Serialize;
use std::any::Any;
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

/// An engine with a server of its own for each measurement, and what is measured on it.
struct Engine {
    name: &'static str,
    start: fn() -> Server,
    bare: Option<Bare>,
    /// The names of the other libraries, and the files with their command lines.
    peers: &'static [(&'static str, &'static str)],
}

/// The floor, or the driver's own lock.
struct Bare {
    name: &'static str,
    /// Its driver, as Cargo.lock names it.
    package: &'static str,
    command: fn(&Server) -> Command,
}

/// A server, which ends with this.
struct Server {
    _runs: Box<dyn Any>,
    /// The URL for fencepost, and the one for others.
    ours: String,
    theirs: String,
}

/// The name of the lock. The floor has its list under that name.
const NAME: &str = "crowded";

const ENGINES: [Engine; 3] = [
    Engine {
        name: "redis",
        start: || {
            let server = redis::start();
            Server { ours: server.url(), theirs: server.url(), _runs: Box::new(server) }
        },
        bare: Some(Bare {
            name: "BLPOP and LPUSH",
            package: "redis",
            command: |server| side::program(&["redis-side-floor", &server.theirs, NAME]),
        }),
        peers: &redis::peers::NAMES,
    },
    Engine {
        name: "zookeeper",
        start: || {
            let (server, ours) = zookeeper::start();
            Server { ours, theirs: server.url(), _runs: Box::new(server) }
        },
        bare: Some(Bare {
            name: "zookeeper-client's lock",
            package: "zookeeper-client",
            command: |server| side::program(&["zookeeper-side-peer", &server.ours]),
        }),
        peers: &zookeeper::peers::PEERS,
    },
    Engine {
        name: "etcd",
        start: || {
            let server = etcd::start();
            Server { ours: server.url(), theirs: server.url(), _runs: Box::new(server) }
        },
        bare: None,
        peers: &[(etcd::peer::PEER, etcd::peer::FILE)],
    },
];

/// Measures all that are here, and passes each row on when it is complete.
pub(crate) fn rows(mut done: impl FnMut(&Row)) {
    for engine in ENGINES {
        if let Some(Bare { name, package, command }) = &engine.bare {
            done(&engine.row(name, host::version(package), command));
        }
        done(&engine.row("fencepost", host::version("fencepost-core"), |server| ours(&server.ours)));
        for (name, file) in engine.peers {
            let command = |server: &Server| redis::peers::program(file, &["drain", &server.theirs, NAME]);
            if redis::peers::program(file, &[]).is_some() {
                let version = redis::peers::version(file).map(|version| format!("{name} {version}"));
                done(&engine.row(name, version, |server| command(server).expect("it was there just now")));
            }
        }
    }
}

impl Engine {
    fn row(&self, name: &'static str, version: Option<String>, command: impl Fn(&Server) -> Command) -> Row {
        let measured = PROCESSES.map(|processes| {
            let server = (self.start)();
            measure(processes, || command(&server)).unwrap_or((f64::NAN, f64::NAN))
        });
        Row {
            engine: self.name,
            name,
            version: version.unwrap_or_default(),
            closed: measured.map(|(closed, _)| closed),
            drained: measured.map(|(_, drained)| drained),
        }
    }
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
