//! One claim: its row, its position in the line, what is asked for it.

pub(crate) mod convert;
pub(crate) mod fixed;
pub(crate) mod limit;
pub(crate) mod line;
pub(crate) mod place;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod waiter;
