//! Lock and release of a name that nobody else wants, beside two bare one-row transactions.

use super::bare::{Bare, Durability};
use crate::command::Place;
use crate::figure::{Figure, Named, Peer, Rounds, median};
use fencepost::Locks;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::time::Instant;

const ROUNDS: usize = 15;
/// Cycles of each way in a round.
const CYCLES: usize = 1_000;

/// With the default durability.
pub(crate) fn normal() -> Figure {
    cycle(Durability::Normal, "lock and release, synchronous=NORMAL, p50", "")
}

/// With `durability=full`.
pub(crate) fn full() -> Figure {
    cycle(Durability::Full, "lock and release, synchronous=FULL, p50", "?durability=full")
}

fn cycle(durability: Durability, name: &'static str, options: &str) -> Figure {
    let place = Place::new("cycle");
    let bare = Bare::open(&place.file("bare.db"), durability);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let locks = runtime.block_on(connect(&format!("{}{options}", place.url())));
    let lock = locks.mutex("uncontended").expect("a good name");
    let path = place.file("flock");
    let rounds = Rounds::run(ROUNDS, 3, |way| match way {
        0 => p50(|| {
            bare.take();
            bare.give();
        }),
        1 => runtime.block_on(async {
            let mut times = Vec::with_capacity(CYCLES);
            for _ in 0..CYCLES {
                let start = Instant::now();
                let guard = lock.lock().await.expect("nobody else wants it");
                guard.release().await.expect("it is held");
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            median(times)
        }),
        _ => p50(|| {
            let file = File::create(&path).expect("a file to lock");
            drop(Flock::lock(file, FlockArg::LockExclusive));
        }),
    });
    runtime.block_on(locks.close());
    Figure {
        engine: "sqlite",
        figure: name,
        unit: "µs",
        floor: Named { name: "two bare transactions", value: rounds.median(0) },
        ours: rounds.median(1),
        ratio: rounds.ratio(1, 0),
        bar: "≤ 1.3 ×",
        peers: vec![Peer {
            name: "flock(2), no tokens, no queue",
            value: rounds.median(2),
            ratio: Some(rounds.ratio(1, 2)),
        }],
    }
}

/// A client of the database at `url`.
pub(crate) async fn connect(url: &str) -> Locks {
    Locks::connect(url).await.expect("a database in a folder of one's own")
}

fn p50(mut work: impl FnMut()) -> f64 {
    let mut times = Vec::with_capacity(CYCLES);
    for _ in 0..CYCLES {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}
