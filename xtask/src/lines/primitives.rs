//! The promises of the primitives, and of the blocking API.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

pub(super) const LINES: &[Line] = &[
    Line {
        id: "blocking-cost",
        engine: "redis",
        promise: "lock and release by the blocking API without a runtime (p50), beside the async API",
        measure: &["blocking-cost"],
        bound: AtMost(1.5, "× its time"),
        limit: 180,
    },
    Line {
        id: "degrade-bound",
        engine: "redis",
        promise: "the server is killed, and stopped, under load with each degrade policy: how much longer a request takes than its waiting time or the attempt limit",
        measure: &["degrade-bound"],
        bound: AtMost(50.0, "ms"),
        limit: 180,
    },
    Line {
        id: "reentry",
        engine: "redis",
        promise: "re-entry of a lock by its holder, and its end (p50)",
        measure: &["reentry"],
        bound: AtMost(1.0, "µs"),
        limit: 120,
    },
    Line {
        id: "set-of-eight-redis",
        engine: "redis",
        promise: "lock and release of 8 free names, with 1 ms added to the network (p50), beside one name",
        measure: &["set-of-eight", "redis"],
        bound: AtMost(1.5, "× its time"),
        limit: 180,
    },
    Line {
        id: "set-orders",
        engine: "redis",
        promise: "two tasks take overlapping sets in opposite orders, 100,000 each: no deadlock",
        measure: &["set-orders", "100000"],
        bound: AtMost(0.0, "failures"),
        limit: 900,
    },
    Line {
        id: "striped-sold",
        engine: "redis",
        promise: "64 buyers sell 1,000 pieces in 20 segments",
        measure: &["striped-sold"],
        bound: AtMost(0.0, "pieces sold otherwise than once"),
        limit: 120,
    },
    Line {
        id: "striped-segments",
        engine: "redis",
        promise: "sales per second of 64 buyers with 16 segments, beside one segment",
        measure: &["striped-segments"],
        bound: AtLeast(4.0, "× the rate"),
        limit: 300,
    },
    Line {
        id: "redis-close",
        engine: "redis",
        promise: "the longest close of a client whose guard was dropped while the server hung",
        measure: &["redis-close"],
        bound: AtMost(5.5, "s"),
        limit: 300,
    },
];
