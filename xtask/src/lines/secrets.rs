//! The promise about the text of a lease, on each engine that has detached leases.

use crate::line::Bound::AtMost;
use crate::line::Line;

macro_rules! lines {
    ($($engine:literal)*) => {
        &[$(Line {
            id: concat!("core-secrets-", $engine),
            engine: "core",
            promise: concat!(
                "with the text of one lease no other claim of its client can be extended, taken up or released on ",
                $engine
            ),
            measure: &["lease-secrets", $engine],
            bound: AtMost(0.0, "claims opened or lost"),
            limit: 300,
        }),*]
    };
}

pub(super) const LINES: &[Line] = lines!["memory" "sqlite" "redis" "redlock" "etcd"];
