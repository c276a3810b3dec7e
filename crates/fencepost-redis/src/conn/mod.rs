//! Connections to servers: how they are made, kept up, and used for calls.

pub(crate) mod call;
pub(crate) mod connect;
pub(crate) mod info;
pub(crate) mod persistent;
mod read_limit;
pub(crate) mod request;
mod run_id;
pub(crate) mod server;
pub(crate) mod target;
mod task;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use run_id::run;

/// Returns a number that no other call in this process returns.
pub(crate) fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns a time between half of `pause` and all of it, so that clients that lost one server do not come back together.
pub(crate) fn jitter(pause: Duration, seed: u64) -> Duration {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    pause / 2 + (pause / 2).mul_f64((mixed >> 40) as f64 / (1u64 << 24) as f64)
}
