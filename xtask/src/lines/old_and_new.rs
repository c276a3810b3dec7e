//! The promise that clients of an older version and of this one exclude each other.

use crate::line::Bound::AtMost;
use crate::line::Line;

macro_rules! lines {
    ($($engine:literal)*) => {
        &[$(Line {
            id: concat!("old-and-new-", $engine),
            engine: "command",
            promise: "runs of the command from before the engines were renamed, beside today's, on a counter file: exact count, no overlap",
            measure: &["old-and-new", $engine],
            bound: AtMost(0.0, "violations"),
            limit: 300,
        }),*]
    };
}

pub(super) const LINES: &[Line] = lines!["sqlite" "redis" "zookeeper" "etcd"];
