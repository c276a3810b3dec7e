//! Rights: who may do what with which names.

pub(crate) mod caller;
pub(crate) mod entry;
pub(crate) mod file;
pub(crate) mod rate;
pub(crate) mod secret;
pub(crate) mod tokens;
