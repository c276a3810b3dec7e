//! Operations of operators: eviction, listing, limits of permits.

pub(crate) mod evict;
pub(crate) mod list;
pub(crate) mod permits;
