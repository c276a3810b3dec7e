//! Operations of operators: eviction and listing.

pub(crate) mod evict;
pub(crate) mod list;
