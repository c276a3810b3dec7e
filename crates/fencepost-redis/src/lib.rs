//! Redis engine of fencepost.
#![allow(dead_code)]

mod backend;
mod cluster;
mod config;
mod connect;
mod entry;
mod error;
mod line;
mod link;
mod listing;
mod net;
mod place;
mod pulse;
mod record;
mod script;
mod sentinel;
mod session;
mod shared;
mod slots;
#[cfg(test)]
mod testing;
mod tls;
mod wire;

pub use backend::open;
pub use config::SCHEMES;
