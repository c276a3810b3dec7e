//! The bar, line by line. An engine that is added appends its lines here.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

/// Every line, those of one engine together.
pub(crate) const LINES: &[Line] = &[
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
        promise: "a hot lock with 1,000 tasks, beside tokio's own Mutex",
        measure: &["memory-hot"],
        bound: AtLeast(0.12, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "sqlite-uncontended",
        engine: "sqlite",
        promise: "lock and release, beside two bare one-row transactions of the same durability (p50)",
        measure: &["sqlite-uncontended"],
        bound: AtMost(1.3, "× the bare transactions' time"),
        limit: 180,
    },
];
