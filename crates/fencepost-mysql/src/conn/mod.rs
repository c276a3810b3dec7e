//! Connections to the server.

pub(crate) mod channel;
pub(crate) mod connect;
mod draws;
mod greeting;
mod groups;
mod packet;
mod requests;
pub(crate) mod session;
mod socket;
pub(crate) mod statements;
