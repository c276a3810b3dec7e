//! Connections to the server.

mod channel;
pub(crate) mod connect;
pub(crate) mod connection;
mod greeting;
pub(crate) mod pool;
mod socket;
pub(crate) mod statements;
