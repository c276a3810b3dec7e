//! The API on the engine in memory, without a network.

mod keys;
mod kit;
mod locks;
mod streams;
