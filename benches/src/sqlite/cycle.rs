//! Lock and release of a name that nobody else wants, beside two bare one-row transactions.

use super::bare::{Bare, Durability};
use crate::client::runtime;
use crate::command::Place;
use crate::cycle::{self, Counts};
use crate::figure::{Figure, Peer, Row};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;

const COUNTS: Counts = Counts { rounds: 15, cycles: 1_000, warm: 0 };

/// With the default durability.
pub(crate) fn normal() -> Figure {
    one_task(Durability::Normal, "lock and release, synchronous=NORMAL, p50", "")
}

/// With `durability=full`.
pub(crate) fn full() -> Figure {
    one_task(Durability::Full, "lock and release, synchronous=FULL, p50", "?durability=full")
}

fn one_task(durability: Durability, figure: &'static str, options: &str) -> Figure {
    let place = Place::new("cycle");
    let bare = Bare::open(&place.file("bare.db"), durability);
    let path = place.file("flock");
    let url = format!("{}{options}", place.url());
    let rounds = cycle::one_task(&runtime(), &url, &COUNTS, 3, async |way, _| match way {
        0 => {
            bare.take();
            bare.give();
        }
        _ => {
            let file = File::create(&path).expect("a file to lock");
            drop(Flock::lock(file, FlockArg::LockExclusive));
        }
    });
    let name = "flock(2), no tokens, no queue";
    let peers = vec![Peer { name, value: rounds.median(2), ratio: Some(rounds.ratio(1, 2)) }];
    let row =
        Row { engine: "sqlite", figure, unit: "µs", floor: "two bare transactions", bar: "≤ 1.3 ×" };
    Figure { peers, ..row.of(&rounds, 1) }
}
