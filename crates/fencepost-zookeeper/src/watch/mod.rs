//! Folders that are followed by one recursive watch for all waiters of a client.

pub(crate) mod folders;
mod follow;
pub(crate) mod queue;
#[cfg(test)]
mod tests;
