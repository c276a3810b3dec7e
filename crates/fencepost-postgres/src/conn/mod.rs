//! Connections to the server.

pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod pool;
mod security;
pub(crate) mod session;
mod statements;
