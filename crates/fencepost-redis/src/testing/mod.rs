//! Helpers of unit tests.

mod tests;

pub(crate) use tests::{ADD, Thread, add, client, command, number, within};
