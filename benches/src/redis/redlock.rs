//! Redlock on five masters: beside other libraries, with a master stopped or down, and many contenders.

use crate::client::{NAME, connect, cycle, runtime, threads};
use crate::figure::{Measured, Rounds, median, p50};
use crate::peers;
use fencepost::{Locks, Mutex};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::{Config, Masters};
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
/// Cycles of each way in a round.
const CYCLES: usize = 500;
/// The contenders for the one lock.
const CONTENDERS: usize = 16;
const CLIENTS: usize = 4;
/// A contender that has waited this long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Five masters that grant at once.
pub(crate) fn masters() -> Masters {
    runtime().block_on(started())
}

async fn started() -> Masters {
    let masters = Masters::start(5, &Config::new()).expect("redis-server, which `cargo xtask test` installs");
    let lender = Locks::connect("memory:").await.expect("memory opens");
    let vouched = fencepost::redis::redlock::vouch(&masters.url(), lender.runtime().clone()).await;
    vouched.expect("five servers that answer");
    lender.close().await;
    masters
}

/// Five masters that grant at once, and a client of them.
struct Five {
    masters: Masters,
    locks: Locks,
}

impl Five {
    async fn start() -> Five {
        let masters = started().await;
        let locks = connect(&masters.url()).await;
        Five { masters, locks }
    }

    fn lock(&self) -> Mutex {
        self.locks.mutex("uncontended").expect("a good name")
    }
}

/// How much longer the first cycle of a new client takes with one master silent, in ms.
pub(crate) fn start() -> Measured {
    const CLIENTS: usize = 20;
    let runtime = runtime();
    let mut five = runtime.block_on(Five::start());
    let url = five.masters.url();
    let first = || {
        let p50 = p50(CLIENTS, async || {
            let locks = connect(&url).await;
            cycle(&locks.mutex(NAME).expect("a good name")).await;
            tokio::spawn(async move { locks.close().await });
        });
        runtime.block_on(p50) / 1e3
    };
    let all = first();
    five.masters.node(0).stop().expect("a server that runs");
    let silent = first();
    five.masters.node(0).cont().expect("a server that was stopped");
    let note =
        format!("p50 of {CLIENTS} new clients: {all:.1} ms with all five, {silent:.1} ms with one silent");
    Measured { figure: silent - all, note }
}

/// How much slower the p50 of a cycle is with one master stopped or down, in percent; at worst.
pub(crate) fn one_down() -> Measured {
    let runtime = runtime();
    let (mut all, mut fewer) = runtime.block_on(async { (Five::start().await, Five::start().await) });
    let (here, gone) = (all.lock(), fewer.lock());
    runtime.block_on(cycle(&gone));
    fewer.masters.node(0).kill().expect("a server that runs");
    let rounds = Rounds::run(ROUNDS, 3, |way| match way {
        0 => runtime.block_on(p50(CYCLES, async || cycle(&here).await)),
        1 => {
            all.masters.node(0).stop().expect("a server that runs");
            let p50 = runtime.block_on(p50(CYCLES, async || cycle(&here).await));
            all.masters.node(0).cont().expect("a server that was stopped");
            // Its outstanding requests are answered before the next way begins.
            runtime.block_on(async {
                for _ in 0..50 {
                    cycle(&here).await;
                }
            });
            p50
        }
        _ => runtime.block_on(p50(CYCLES, async || cycle(&gone).await)),
    });
    let (stopped, down) = (rounds.ratio(1, 0), rounds.ratio(2, 0));
    let note = format!(
        "p50 of all five {:.0} µs, one stopped {:.0} µs ({stopped:.2} ×), one down {:.0} µs ({down:.2} ×)",
        rounds.median(0),
        rounds.median(1),
        rounds.median(2)
    );
    runtime.block_on(async {
        all.locks.close().await;
        fewer.locks.close().await;
    });
    Measured { figure: (stopped.max(down) - 1.0) * 100.0, note }
}

/// The p50 of a cycle as a multiple of rslock's; infinite if redsync is ahead.
pub(crate) fn beside_peers() -> Measured {
    let runtime = runtime();
    let five = runtime.block_on(Five::start());
    let url = five.masters.url();
    let urls: Vec<String> = five.masters.nodes().iter().map(|node| node.url()).collect();
    let urls = urls.join(",");
    let (mut ours, mut rslock, mut redsync) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.extend(peers::own_cycle(&url));
        rslock.extend(peers::asked("rslock", &["cycle", &urls, "500"], "p50"));
        redsync.extend(peers::asked("redsync", &["cycle", &urls, "500"], "p50"));
    }
    runtime.block_on(five.locks.close());
    let ratios = ours.iter().zip(&rslock).map(|(ours, theirs)| ours / theirs).collect();
    let (ratio, ours, rslock, redsync) = (median(ratios), median(ours), median(rslock), median(redsync));
    let note = format!("p50 {ours:.0} µs, rslock {rslock:.0} µs, redsync {redsync:.0} µs");
    Measured { figure: if ours >= redsync { f64::INFINITY } else { ratio }, note }
}

/// Runs `count` cycles of contenders for one lock. Counts what is left and the contenders that are stuck.
pub(crate) fn cycles(count: usize) -> Measured {
    let runtime = threads();
    runtime.block_on(async {
        let five = Five::start().await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect(&five.masters.url()).await);
        }
        let start = Instant::now();
        let running: Vec<_> = (0..CONTENDERS)
            .map(|contender| {
                let lock = clients[contender % CLIENTS].mutex(NAME).expect("a good name");
                tokio::spawn(async move {
                    let mut longest = Duration::ZERO;
                    for _ in 0..count / CONTENDERS {
                        let asked = Instant::now();
                        let guard = lock.lock().wait(STUCK).await.ok()?;
                        longest = longest.max(asked.elapsed());
                        guard.release().await.ok()?;
                    }
                    Some(longest)
                })
            })
            .collect();
        let (mut stuck, mut longest) = (0, Duration::ZERO);
        for task in running {
            match task.await.expect("a task that does not panic") {
                Some(wait) => longest = longest.max(wait),
                None => stuck += 1,
            }
        }
        let took = start.elapsed();
        for client in clients {
            client.close().await;
        }
        let left = left(&five).await;
        five.locks.close().await;
        let rate = count as f64 / took.as_secs_f64();
        let note =
            format!("{count} cycles, {rate:.0}/s, longest wait {longest:.1?}; {stuck} stuck; left: {left:?}");
        Measured { figure: (stuck + left.len()) as f64, note }
    })
}

/// Claims that a master still knows of, and keys that would never expire.
async fn left(five: &Five) -> Vec<String> {
    let mut left = Vec::new();
    for node in five.masters.nodes() {
        let mut look = node.look();
        for key in look.keys("*") {
            let marker = key.starts_with("redlock:");
            if !marker && look.ask::<i64>(&["PTTL", &key]) < 0 {
                left.push(format!("the key {key} never expires"));
            }
        }
        let one = connect(&node.url()).await;
        let info = one.inspect(NAME).await.expect("a server that answers");
        left.extend(info.claims.iter().map(|claim| format!("{claim:?}")));
        one.close().await;
    }
    left
}
