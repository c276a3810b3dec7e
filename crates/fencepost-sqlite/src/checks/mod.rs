//! Checks of the machine: the file system below the database, and the process that blocks it.

pub(crate) mod filesystem;
pub(crate) mod lock_owner;
