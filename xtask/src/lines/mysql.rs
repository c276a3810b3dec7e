//! The promises of the MySQL engine.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

pub(super) const LINES: &[Line] = super::sql::lines!(
    "mysql",
    session: "session",
    token: "the row of the lock",
    left: "named lock",
    more: []
);
