//! Helpers of unit tests.

mod tests;

pub(crate) use tests::{ADD, PATIENCE, Thread, add, client, command, first_number, number, within};
