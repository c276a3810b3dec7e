//! The claims of one client: their state here, their renewal, and their withdrawal.

pub(crate) mod session;
pub(crate) mod spread;
pub(crate) mod unanswered;
pub(crate) mod waiters;
pub(crate) mod withdrawals;
