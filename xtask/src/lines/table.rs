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
                id: concat!($ids, "-deleted"),
                engine: $engine,
                promise: "mode=table: rows of held locks deleted by hand: each holder is told by its next renewal, and tokens grow",
                measure: &[$engine, "table-deleted"],
                bound: AtMost(0.5, "leases"),
                limit: 120,
            },
            Line {
                id: concat!($ids, "-impatient"),
                engine: $engine,
                promise: "mode=table: 20,000 waits of 1 to 5 ms for a busy lock: what they leave at the server",
                measure: &[$engine, "impatient", "20000", "?mode=table"],
                bound: AtMost(16.0, "prepared statements, connections and claims"),
                limit: 600,
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
                id: concat!($ids, "-close"),
                engine: $engine,
                promise: "mode=table: the longest close of a client with 2 guards, which are told the reason",
                measure: &[$engine, "table-close"],
                bound: AtMost(5.5, "s"),
                limit: 300,
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
