//! The states of a claim in this client: its nodes, its position in a queue, its grant.

pub(crate) mod deleted;
pub(crate) mod evicted;
pub(crate) mod held;
pub(crate) mod nodes;
pub(crate) mod records;
pub(crate) mod waiter;
