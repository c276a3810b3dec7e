//! Redis engine of fencepost.
#![allow(dead_code)]

mod cluster;
mod config;
mod connect;
mod error;
mod link;
mod net;
mod pulse;
mod script;
mod sentinel;
mod slots;
#[cfg(test)]
mod testing;
mod tls;
mod wire;

pub use config::SCHEMES;
