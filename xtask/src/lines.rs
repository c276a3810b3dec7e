//! The bar, line by line. An engine that is added appends its lines here.

mod command;
mod demo;
mod etcd;
mod mysql;
mod postgres;
mod primitives;
mod redis;
mod secrets;
mod server;
mod sql;
mod table;
mod zookeeper;

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;
use std::sync::LazyLock;

/// Every line, those of one engine together.
pub(crate) static LINES: LazyLock<Vec<&'static Line>> = LazyLock::new(|| {
    secrets::LINES
        .iter()
        .chain(FIRST)
        .chain(redis::LINES)
        .chain(primitives::LINES)
        .chain(command::LINES)
        .chain(demo::LINES)
        .chain(server::LINES)
        .chain(zookeeper::LINES)
        .chain(etcd::LINES)
        .chain(postgres::LINES)
        .chain(table::POSTGRES)
        .chain(mysql::LINES)
        .chain(table::MYSQL)
        .collect()
});

/// Those that have no file of their own.
const FIRST: &[Line] = &[
    Line {
        id: "core-simulation",
        engine: "core",
        promise: "a minute of simulation on fresh seeds, with lost, late and repeated replies, pauses, clock steps and drops: no findings",
        measure: &["simulation"],
        bound: AtLeast(1_000_000.0, "claims a minute"),
        limit: 180,
    },
    Line {
        id: "memory-one-task",
        engine: "memory",
        promise: "lock and release on one task, beside tokio's own Mutex",
        measure: &["memory-one-task"],
        bound: AtLeast(0.06, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-hot",
        engine: "memory",
        promise: "a hot lock with 1,000 tasks on a thread per core, beside tokio's own Mutex",
        measure: &["memory-hot"],
        bound: AtLeast(0.12, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-hot-one-thread",
        engine: "memory",
        promise: "the same on one thread",
        measure: &["memory-hot-one-thread"],
        bound: AtLeast(0.12, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-memory",
        engine: "memory",
        promise: "100,000 waiters on one lock: memory of each",
        measure: &["memory-waiters", "memory"],
        bound: AtMost(4.0, "KiB"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-wakeups",
        engine: "memory",
        promise: "100,000 waiters on one lock: wakeups per release",
        measure: &["memory-waiters", "wakeups"],
        bound: AtMost(2.0, "polls"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-idle",
        engine: "memory",
        promise: "100,000 waiters on one lock: processor while nothing happens",
        measure: &["memory-waiters", "idle"],
        bound: AtMost(2.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "memory-held-memory",
        engine: "memory",
        promise: "100,000 locks held with renewal: memory of each",
        measure: &["memory-held", "memory"],
        bound: AtMost(4.0, "KiB"),
        limit: 120,
    },
    Line {
        id: "memory-held-idle",
        engine: "memory",
        promise: "100,000 locks held with renewal: processor while nothing else happens",
        measure: &["memory-held", "idle"],
        bound: AtMost(2.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "sqlite-normal",
        engine: "sqlite",
        promise: "lock and release (p50), beside two bare one-row transactions with synchronous=NORMAL",
        measure: &["sqlite-normal"],
        bound: AtMost(1.3, "× their time"),
        limit: 180,
    },
    Line {
        id: "sqlite-full",
        engine: "sqlite",
        promise: "the same with synchronous=FULL",
        measure: &["sqlite-full"],
        bound: AtMost(1.3, "× their time"),
        limit: 300,
    },
    Line {
        id: "sqlite-handoff",
        engine: "sqlite",
        promise: "handoff from one process to another (p50)",
        measure: &["sqlite-handoff"],
        bound: AtMost(5.0, "ms"),
        limit: 120,
    },
    Line {
        id: "sqlite-killed",
        engine: "sqlite",
        promise: "kill -9 of a holder and of a waiter, 1,000 times: the next is granted within 1 s, tokens grow, nothing is left",
        measure: &["sqlite-killed"],
        bound: AtMost(0.0, "violations"),
        limit: 600,
    },
    Line {
        id: "sqlite-stopped",
        engine: "sqlite",
        promise: "a process stopped in the middle of a transaction for four leases costs no other its lease",
        measure: &["sqlite-stopped"],
        bound: AtMost(0.0, "leases lost"),
        limit: 120,
    },
    Line {
        id: "sqlite-idle",
        engine: "sqlite",
        promise: "100 idle waiting processes, once started",
        measure: &["sqlite-idle"],
        bound: AtMost(2.0, "% of a core in all"),
        limit: 240,
    },
];
