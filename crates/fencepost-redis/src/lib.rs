//! Redis engine of fencepost.
#![allow(dead_code)]

mod config;
mod connect;
mod error;
mod link;
mod net;
mod script;
#[cfg(test)]
mod testing;
mod tls;
mod wire;
