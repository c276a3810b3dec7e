//! The blocking API.

use crate::line::Bound::AtMost;
use crate::line::Line;

/// The lines of the blocking API.
pub(super) const LINES: &[Line] = &[Line {
    id: "blocking-cost",
    engine: "redis",
    promise: "lock and release by the blocking API without a runtime (p50), beside the async API",
    measure: &["blocking-cost"],
    bound: AtMost(1.5, "× its time"),
    limit: 180,
}];
