//! The SQLite engine beside the bare driver.

pub(crate) mod bare;
pub(crate) mod cycle;
pub(crate) mod handoff;
pub(crate) mod killed;
