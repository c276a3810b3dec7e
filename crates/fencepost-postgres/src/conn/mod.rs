//! Connections to the server.

pub(crate) mod connect;
mod security;
pub(crate) mod session;
mod statements;
