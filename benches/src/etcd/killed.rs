//! kill -9: of a holder, and of the cluster's leader.

use super::start;
use crate::client::NAME;
use crate::figure::{Measured, median};
use crate::killed::{self, LEASE};
use fencepost::Locks;
use fencepost_testkit::etcd::{Cluster, Config};
use fencepost_testkit::faults::Faults;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How often each is killed.
const TIMES: usize = 5;
/// Locks that are held while the leader is killed.
const LOCKS: usize = 200;

/// The longest time, in seconds, past its lease after which a killed holder's lock is granted to the next.
pub(crate) fn holders() -> Measured {
    let server = start();
    let held = format!("with a lease of {} s", LEASE.as_secs());
    killed::holders(&server.url(), LEASE, &held)
}

/// The longest time, in seconds, that nothing could be locked after the leader was killed. Endless if a guard was lost or a token
/// did not grow.
pub(crate) fn leaders() -> Measured {
    // etcd's own timers: elections after a second.
    let mut cluster = Cluster::start(&Config::new().heartbeat(100).in_memory()).expect("a cluster");
    let (mut times, mut troubles) = (Vec::new(), Vec::new());
    runtime().block_on(async {
        let locks = Locks::connect(&cluster.direct_url()).await.expect("a cluster that answers");
        let mut held = Vec::new();
        for number in 0..LOCKS {
            let lock = locks.mutex(&format!("held-{number}")).expect("a good name");
            held.push(lock.lock().ttl(Duration::from_secs(10)).await.expect("nobody else wants it"));
        }
        let lock = locks.mutex(NAME).expect("a good name");
        let mut last = held.iter().map(|guard| guard.token()).max().expect("some are held");
        for turn in 0..TIMES {
            let killed = Instant::now();
            cluster.kill().expect("a leader that can be killed");
            let guard = lock.lock().wait(Duration::from_secs(60)).await.expect("the cluster is back");
            times.push(killed.elapsed().as_secs_f64());
            if guard.token() <= last {
                troubles.push(format!("kill {turn}: token {} after {last}", guard.token()));
            }
            last = guard.token();
            guard.release().await.expect("it is held");
            cluster.restart().expect("a member that starts again");
        }
        // Long enough for every lease to have run out, had it not been renewed.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let lost = held.iter().filter(|guard| guard.ensure_held().is_err()).count();
        if lost > 0 {
            troubles.push(format!("{lost} of {LOCKS} guards were lost"));
        }
        for guard in held {
            let _ = guard.release().await;
        }
        locks.close().await;
    });
    let worst = if troubles.is_empty() { times.iter().copied().fold(0.0, f64::max) } else { f64::NAN };
    let note = format!(
        "{TIMES} leaders of three members killed with {LOCKS} locks held, elections after 1 s; {:.2} s (median){}",
        median(times),
        troubles.iter().map(|trouble| format!("; {trouble}")).collect::<String>()
    );
    Measured { figure: worst, note }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
