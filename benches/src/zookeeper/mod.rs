//! ZooKeeper: beside the bare driver and the lock that comes with it, and under kills, stops and cut networks.

pub(crate) mod counter;
pub(crate) mod cycle;
pub(crate) mod deleted;
pub(crate) mod kinds;
mod line;
pub(crate) mod partition;
pub(crate) mod peer;
mod server;
pub(crate) mod soak;
pub(crate) mod torture;

pub(crate) use server::start;

use crate::cycle::Counted;
use crate::figure::{Figure, Measured};
use crate::held::{Held, SPAN};
use crate::killed::{self, LEASE};
use crate::{cancelled, handoff, impatient, peers};
use fencepost_testkit::zookeeper::{Config, Ensemble, ZooKeeper, ephemerals, word};
use server::TICK;
use std::time::Duration;

/// Cycles and handoffs before one counts: the server compiles what it runs often, which takes the cores from those who are measured.
const WARM: usize = 10_000;

/// Counts nodes, watches and connections that impatient waits leave.
pub(crate) fn impatient(count: usize) -> Measured {
    let server = server::start();
    let look = || {
        let said = word(server.address(), "mntr").expect("a server that answers its operator");
        let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        ["zk_znode_count", "zk_watch_count", "zk_num_alive_connections"]
            .map(|name| value(name).expect("mntr has it"))
            .to_vec()
    };
    impatient::waits(&server::url(&server), count, &["nodes", "watches", "connections"], look)
}

/// Requests a second for so many held locks.
pub(crate) fn held(count: usize) -> Measured {
    let server = start();
    let held = Held::start(&server.client_url(), count);
    let (sent, which) = server.sent(|| std::thread::sleep(SPAN));
    let lost = held.lost();
    let figure = if lost == 0 { sent / SPAN.as_secs_f64() } else { f64::NAN };
    let span = SPAN.as_secs();
    Measured { figure, note: format!("{count} locks over {span} s: {which}; {lost} lost") }
}

/// Counts claims and nodes that are left of requests that are given up.
pub(crate) fn cancelled() -> Measured {
    let server = start();
    cancelled::requests(&server.client_url(), || {
        let all = ephemerals(server.address()).expect("a server that answers");
        all.iter().filter(|path| path.contains("-lock-")).count()
    })
}

/// The longest time, in seconds, past its session and one tick after which a killed holder's lock is granted to the next.
pub(crate) fn killed_holders() -> Measured {
    let server = start();
    let url = format!("{}?session={}ms", server::url(&server), LEASE.as_millis());
    let held = format!("in sessions of {} s, ticks of {} s", LEASE.as_secs(), TICK.as_secs_f64());
    killed::past(&url, LEASE + TICK, &held)
}

/// The longest time, in seconds, that nothing could be locked after the leader was killed.
pub(crate) fn leaders() -> Measured {
    let ensemble = Ensemble::start(&Config::new().tick(Duration::from_millis(200))).expect("an ensemble");
    let url = format!("{}/leader?session=10s", ensemble.url());
    killed::leaders(ensemble, &url, "three in sessions of 10 s")
}

/// Every row of the table.
pub(crate) fn figures() -> Vec<Figure> {
    let mut figures = vec![cycle::one_task()];
    figures.extend(handoff::figures::<ZooKeeper>());
    figures
}

/// Counts the lines on which a peer is ahead of fencepost, where it should not be.
pub(crate) fn ahead() -> Measured {
    let beside = handoff::beside_peers::<ZooKeeper>;
    peers::ahead::<ZooKeeper>(&[cycle::one_task(), beside(16), beside(128)])
}
