//! The API on the engine in memory: without a network, but for the tests of the listener.

mod ends;
mod evictions;
mod keys;
mod kit;
mod limits;
mod live;
mod locks;
mod lost_replies;
mod network;
mod once;
mod page;
mod records;
mod rights;
mod runs;
mod service;
mod streams;
mod tokens;
mod trace;
