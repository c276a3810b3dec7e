//! Reentrancy, several names at once, and segments.

use crate::client::{connect, cycle, runtime};
use crate::figure::{Figure, Measured, Named, Rounds, Row, median, p50};
use crate::redis;
use fencepost::{Holder, Locks};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::{etcd, redis as redis_server, sql};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const CYCLES: usize = 100;
/// The delay of each way of a request.
const ADDED: Duration = Duration::from_micros(500);
/// The names of the set.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// The tasks that buy.
const BUYERS: u32 = 64;
/// The pieces of the stock.
const PIECES: u32 = 1_000;
/// How long a buyer holds its segment.
const SALE: Duration = Duration::from_millis(2);

/// The median time of a re-entry and its end in µs, on Redis.
pub(crate) fn reentry() -> Measured {
    let server = redis::start();
    let runtime = runtime();
    let figure = runtime.block_on(async {
        let locks = connect(&server.url()).await;
        let (holder, mutex) = (Holder::new(), locks.mutex("reentered").expect("a good name"));
        let outer = mutex.lock().holder(&holder).reentrant().await.expect("nobody else wants it");
        // A thousand at a time: the clock takes longer than one of them.
        let thousand = async || {
            for _ in 0..1_000 {
                drop(mutex.lock().holder(&holder).reentrant().await.expect("the holder has it"));
            }
        };
        let figure = p50(1_000, thousand).await / 1e3;
        outer.release().await.expect("it is held");
        locks.close().await;
        figure
    });
    Measured { figure, note: "1,000 times 1,000 entries".to_owned() }
}

/// A set of eight free names beside one lock, with 1 ms added to each round trip.
pub(crate) fn set_of_eight(engine: &str) -> Figure {
    match engine {
        "redis" => {
            let mut server =
                redis_server::Proxied::start(&redis_server::Config::new()).expect("a server starts");
            server.delay(ADDED).expect("the proxy is up");
            eight("redis", &server.url())
        }
        "etcd" => {
            let mut server = etcd::Proxied::start(&etcd::Config::new()).expect("a server starts");
            server.delay(ADDED).expect("the proxy is up");
            eight("etcd", &server.url())
        }
        "postgres" => {
            let mut server = sql::ProxiedPostgres::start(&()).expect("a server starts");
            server.delay(ADDED).expect("the proxy is up");
            eight("postgres", &server.url())
        }
        _ => panic!("redis, etcd or postgres"),
    }
}

fn eight(engine: &'static str, url: &str) -> Figure {
    let runtime = runtime();
    let locks = runtime.block_on(connect(url));
    let one = locks.mutex("one").expect("a good name");
    let set = locks.multi(NAMES).expect("good names");
    let take_all = async || set.lock().await.expect("nobody else wants them").release().await;
    let rounds = Rounds::run(ROUNDS, 2, |way| {
        runtime.block_on(p50(CYCLES, async || match way {
            0 => cycle(&one).await,
            _ => take_all().await.expect("they are held"),
        }))
    });
    runtime.block_on(locks.close());
    let figure = "lock and release of 8 names, 1 ms of network, p50";
    Row { engine, figure, unit: "µs", floor: "lock and release of one", bar: "≤ 1.5 ×" }.of(&rounds, 1)
}

/// Two tasks take overlapping sets in opposite orders so many times each, on Redis. The figure is how many of them failed.
pub(crate) fn opposite_orders(times: usize) -> Measured {
    let server = redis::start();
    let start = Instant::now();
    let failed = runtime().block_on(async {
        let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
        let sets = [(one.clone(), ["a", "b", "c"]), (two.clone(), ["d", "c", "b"])];
        let tasks = sets.map(|(locks, names)| {
            tokio::spawn(async move {
                let set = locks.multi(names).expect("good names");
                let mut failed = 0;
                for _ in 0..times {
                    match set.lock().wait(Duration::from_secs(10)).await {
                        Ok(guard) => failed += usize::from(guard.release().await.is_err()),
                        Err(_) => failed += 1,
                    }
                }
                failed
            })
        });
        let mut failed = 0;
        for task in tasks {
            failed += task.await.expect("a task that does not panic");
        }
        one.close().await;
        two.close().await;
        failed
    });
    let note = format!("two tasks, {times} sets each, in {:.0} s", start.elapsed().as_secs_f64());
    Measured { figure: failed as f64, note }
}

/// How many pieces are sold otherwise than once: 1,000 pieces in 20 segments, 64 buyers in 4 clients on Redis.
pub(crate) fn sold_exactly() -> Measured {
    let server = redis::start();
    let (sold, seconds) = runtime().block_on(sell(&server.url(), 20));
    let wrong = u64::from(sold.abs_diff(PIECES));
    Measured { figure: wrong as f64, note: format!("{sold} of {PIECES} pieces sold in {seconds:.2} s") }
}

/// The numbers of segments on the curve.
const SEGMENTS: [(u32, &str); 6] = [
    (1, "64 buyers, 2 ms a sale, 1 segment"),
    (2, "the same with 2 segments"),
    (4, "the same with 4 segments"),
    (8, "the same with 8 segments"),
    (16, "the same with 16 segments"),
    (32, "the same with 32 segments"),
];

/// Sales per second for each number of segments, beside one segment.
pub(crate) fn curve() -> Vec<Figure> {
    let rates = SEGMENTS.map(|(segments, figure)| {
        let runs = (0..3).map(|_| {
            let server = redis::start();
            let (sold, seconds) = runtime().block_on(sell(&server.url(), segments));
            f64::from(sold) / seconds
        });
        (figure, median(runs.collect()))
    });
    let (_, one) = rates[0];
    let row = |(figure, ours): (&'static str, f64)| Figure {
        engine: "segments of a striped lock on redis",
        figure,
        unit: "sales/s",
        floor: Named { name: "one segment", value: one },
        ours,
        ratio: ours / one,
        bar: if figure.contains("16") { "≥ 4 ×" } else { "" },
        peers: Vec::new(),
    };
    rates.map(row).into()
}

/// Sales per second with 16 segments, beside one segment; the note has the curve.
pub(crate) fn segments() -> Measured {
    let curve = curve();
    let rates = SEGMENTS.iter().zip(&curve).map(|((count, _), row)| format!("{count}: {:.0}/s", row.ours));
    let note = format!("64 buyers, 2 ms a sale; {}", rates.collect::<Vec<_>>().join(", "));
    Measured { figure: curve[4].ratio, note }
}

/// Sells the whole stock, and returns how many pieces were sold, and in how many seconds.
async fn sell(url: &str, segments: u32) -> (u32, f64) {
    let mut clients: Vec<Locks> = Vec::new();
    for _ in 0..4 {
        clients.push(connect(url).await);
    }
    // Only the lock of a segment protects its count: a reader waits before it writes.
    let stock: Arc<[AtomicU32]> = (0..segments)
        .map(|segment| PIECES / segments + u32::from(segment < PIECES % segments))
        .map(AtomicU32::new)
        .collect();
    let start = Instant::now();
    let buyers: Vec<_> = (0..BUYERS)
        .map(|buyer| tokio::spawn(buy(clients[buyer as usize % clients.len()].clone(), stock.clone())))
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.expect("a task that does not panic");
    }
    let seconds = start.elapsed().as_secs_f64();
    for client in clients {
        client.close().await;
    }
    (sold, seconds)
}

async fn buy(locks: Locks, stock: Arc<[AtomicU32]>) -> u32 {
    let striped = locks.striped("stock", stock.len() as u32).expect("a good name");
    let mut sold = 0;
    'pieces: loop {
        let mut walk = striped.free_first();
        while let Some((segment, guard)) = walk.next().await.expect("the server answers") {
            let left = stock[segment].load(Ordering::Relaxed);
            if left > 0 {
                tokio::time::sleep(SALE).await;
                stock[segment].store(left - 1, Ordering::Relaxed);
                sold += 1;
                guard.release().await.expect("it is held");
                continue 'pieces;
            }
            guard.release().await.expect("it is held");
        }
        return sold;
    }
}
