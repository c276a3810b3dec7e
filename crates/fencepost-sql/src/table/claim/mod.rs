//! One claim: its row, its place in the line, its entry.

pub(crate) mod entry;
pub(crate) mod limit;
pub(crate) mod line;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod turn;
pub(crate) mod waiter;
