//! The promises of the PostgreSQL engine.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

pub(super) const LINES: &[Line] = super::sql::lines!(
    "postgres",
    session: "backend",
    token: "the sequence",
    left: "advisory lock",
    more: [
        Line {
            id: "postgres-cancelled-quiet",
            engine: "postgres",
            promise: "10,000 requests given up at any moment with wait=quiet: no advisory lock is left",
            measure: &["postgres", "cancelled", "?wait=quiet"],
            bound: AtMost(0.0, "locks"),
            limit: 300,
        },
        Line {
            id: "postgres-torture-table",
            engine: "postgres",
            promise: "100,000 cycles on the lease table under the same faults: histories checked, nothing left",
            measure: &["postgres", "torture", "100000", "1", "?mode=table"],
            bound: AtMost(0.0, "violations"),
            limit: 5_400,
        },
        Line {
            id: "postgres-cancelled-row",
            engine: "postgres",
            promise: "10,000 requests for locked rows given up at any moment: no transaction and no note is left",
            measure: &["postgres", "cancelled", "?mode=row"],
            bound: AtMost(0.0, "locks"),
            limit: 900,
        },
        Line {
            id: "postgres-impatient-row",
            engine: "postgres",
            promise: "20,000 waits of 1 to 5 ms for a locked row: what they leave at the server",
            measure: &["postgres", "impatient", "20000", "?mode=row"],
            bound: AtMost(16.0, "prepared statements, connections and claims"),
            limit: 600,
        },
        Line {
            id: "postgres-torture-row",
            engine: "postgres",
            promise: "100,000 cycles on locked rows under the same faults: histories checked, nothing left. A lock may be granted again when its transaction ends; its holder is told within 500 ms",
            measure: &["postgres", "torture", "100000", "1", "?mode=row"],
            bound: AtMost(0.0, "violations"),
            limit: 5_400,
        },
Line {
    id: "set-of-eight-postgres",
    engine: "postgres",
    promise: "the same on PostgreSQL",
    measure: &["set-of-eight", "postgres"],
    bound: AtMost(1.5, "× its time"),
    limit: 180,
},
    ]
);
