//! One claim: how it is held, and how it waits.

pub(crate) mod attempt;
pub(crate) mod held;
pub(crate) mod listed;
pub(crate) mod quiet;
mod quiet_attempt;
pub(crate) mod wait;
