//! Inspection, listing, eviction and reports for operators.

pub mod checks;
pub(crate) mod examine;
pub(crate) mod holder;
pub(crate) mod info;
pub(crate) mod report;
pub(crate) mod run;
mod texts;
