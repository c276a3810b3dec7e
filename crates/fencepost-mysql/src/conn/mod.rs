//! Connections to the server.

mod channel;
pub(crate) mod connect;
mod greeting;
pub(crate) mod session;
mod socket;
pub(crate) mod statements;
