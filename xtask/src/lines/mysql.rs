//! The promises of the MySQL engine.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

pub(super) const LINES: &[Line] = super::sql::lines!(
    "mysql",
    session: "session",
    token: "the row of the lock",
    left: "named lock",
    more: [Line {
        id: "mysql-torture-table",
        engine: "mysql",
        promise: "100,000 cycles on the lease table under the same faults: histories checked, nothing left",
        measure: &["mysql", "torture", "100000", "1", "?mode=table"],
        bound: AtMost(0.0, "violations"),
        limit: 5_400,
    }]
);
