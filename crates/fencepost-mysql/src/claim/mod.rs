//! One claim: how it is held, and how it waits.

pub(crate) mod attempt;
pub(crate) mod held;
pub(crate) mod renewal;
pub(crate) mod wait;
