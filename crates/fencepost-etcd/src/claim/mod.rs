//! A claim of this client: its state, and the requests that create, move and delete its key.

pub(crate) mod attach;
pub(crate) mod confirm;
pub(crate) mod enter;
pub(crate) mod eviction;
pub(crate) mod lease_change;
pub(crate) mod records;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod withdraw;
