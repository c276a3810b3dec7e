//! The requests of operators: contenders, listings, evictions.

pub(crate) mod evict;
pub(crate) mod list;
