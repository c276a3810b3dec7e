//! The promises of the lease tables (`mode=table`).

use crate::line::Bound::AtMost;
use crate::line::Line;

/// The lines of an engine. `$wakeup`: how a waiter of another process learns of its grant, and the most ms.
macro_rules! lines {
    ($engine:literal, $ids:literal, wakeup: $how:literal, $ms:literal) => {
        &[
            Line {
                id: concat!($ids, "-statements"),
                engine: $engine,
                promise: "mode=table: statements of an uncontended cycle",
                measure: &[$engine, "statements", "?mode=table"],
                bound: AtMost(2.0, "statements"),
                limit: 120,
            },
            Line {
                id: concat!($ids, "-one-task"),
                engine: $engine,
                promise: "mode=table: lock and release (p50), beside the same statements by hand over a driver",
                measure: &[$engine, "table-one-task"],
                bound: AtMost(1.25, "× their time"),
                limit: 300,
            },
            Line {
                id: concat!($ids, "-held"),
                engine: $engine,
                promise: "mode=table: 10,000 locks that one process holds, each renewal of all of them",
                measure: &[$engine, "table-held", "10000"],
                bound: AtMost(1.0, "statements"),
                limit: 900,
            },
            Line {
                id: concat!($ids, "-wakeup"),
                engine: $engine,
                promise: concat!("mode=table: a release until the waiter of another client has the lock (p50), ", $how),
                measure: &[$engine, "table-wakeup"],
                bound: AtMost($ms, "ms"),
                limit: 300,
            },
            Line {
                id: concat!($ids, "-cancelled"),
                engine: $engine,
                promise: "mode=table: 10,000 requests given up at any moment, under load: no row of a claim is left",
                measure: &[$engine, "table-cancelled"],
                bound: AtMost(0.0, "rows"),
                limit: 600,
            },
            Line {
                id: concat!($ids, "-tokens"),
                engine: $engine,
                promise: "mode=table: kill -9 of the server: tokens grow",
                measure: &[$engine, "tokens", "?mode=table"],
                bound: AtMost(0.0, "tokens that do not grow"),
                limit: 300,
            },
        ]
    };
}

pub(super) const POSTGRES: &[Line] = lines!("postgres", "postgres-table", wakeup: "by a message", 5.0);

pub(super) const MYSQL: &[Line] =
    lines!("mysql", "mysql-table", wakeup: "by polling every 50 to 100 ms", 100.0);
