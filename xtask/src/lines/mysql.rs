//! The promises of the MySQL engine.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

pub(super) const LINES: &[Line] = super::sql::lines!(
    "mysql",
    session: "session",
    token: "the row of the lock",
    left: "named lock",
    more: [
        Line {
            id: "mysql-torture-table",
            engine: "mysql",
            promise: "100,000 cycles on the lease table under the same faults: histories checked, nothing left",
            measure: &["mysql", "torture", "100000", "1", "?mode=table"],
            bound: AtMost(0.0, "violations"),
            limit: 5_400,
        },
        Line {
            id: "mysql-cancelled-row",
            engine: "mysql",
            promise: "10,000 requests for locked rows given up at any moment: no transaction and no note is left",
            measure: &["mysql", "cancelled", "?mode=row"],
            bound: AtMost(0.0, "locks"),
            limit: 900,
        },
        Line {
            id: "mysql-impatient-row",
            engine: "mysql",
            promise: "20,000 waits of 1 to 5 ms for a locked row: what they leave at the server",
            measure: &["mysql", "impatient", "20000", "?mode=row"],
            bound: AtMost(16.0, "prepared statements, connections and claims"),
            limit: 600,
        },
        Line {
            id: "mysql-torture-row",
            engine: "mysql",
            promise: "100,000 cycles on locked rows under the same faults: histories checked, nothing left. A lock may be granted again when its transaction ends; its holder is told within 500 ms",
            measure: &["mysql", "torture", "100000", "1", "?mode=row"],
            bound: AtMost(0.0, "violations"),
            limit: 5_400,
        },
    ]
);
