//! etcd engine of fencepost. Its keys are those of etcd's own locks, so both exclude each other. It needs etcd 3.4 or newer.
//!
//! `etcd://[user[:password]@]host[:port],…`, and `etcds:` with TLS.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `prefix` | none | prefix of all keys |
//! | `timeout` | `4s` | time limit of a request with all its attempts |
//! | `connect_timeout` | `2s` | time limit of an attempt to connect |
//! | `password_env`, `password_file` | | environment variable or file with the password |
//! | `ca` | the system's | with TLS: a file of certificate authorities |
//! | `cert`, `key` | none | with TLS: the files of the client's certificate and its key |
//!
//! # What is guaranteed
//! - Locks exclude each other, first come, first served, in the order of etcd's revisions, as long as a majority of the members
//!   keeps its data. Programs that use etcd's `concurrency` package or `etcdctl lock` wait in the same queue.
//! - Fencing tokens are create revisions. They grow across failures, changes of the leader and restarts.
//! - The deadline of a lease counts from the sending of the request that made or renewed it. A lock never outlives its lease.
//! - A handoff wakes only the next waiter, by one watch stream per process. A broken stream is opened again.
//!
//! # What is not
//! - Without a majority nothing is granted, renewed or released.
//! - A lease lasts whole seconds, and [at least 2](fencepost_core::Capabilities::min_ttl). The locks of a killed process stay locked
//!   until it ends.
//! - An operator who deletes a holder's key frees the lock at once. The holder learns of it within 100 ms once it has held the lock
//!   for 1 s, otherwise when it releases.

mod backend;
mod claim;
mod client;
mod config;
mod doctor;
mod error;
mod guarded;
mod keys;
mod lease;
mod operator;
mod place;
mod rpc;
mod watch;

pub use backend::open;
pub use config::SCHEMES;
pub use guarded::{Held, Write};

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
