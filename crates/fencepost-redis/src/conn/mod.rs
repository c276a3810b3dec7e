//! Connections to servers: how they are made, kept up, and used for calls.

pub(crate) mod call;
pub(crate) mod connect;
pub(crate) mod info;
pub(crate) mod persistent;
mod read_limit;
pub(crate) mod request;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod target;
pub(crate) mod task;

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that no other call in this process returns.
pub(crate) fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
