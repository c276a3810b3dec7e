//! etcd engine of fencepost: the keys are those of etcd's own locks, so that both exclude each other. etcd 3.4 or newer.
//!
//! `etcd://[user[:password]@]host[:port],…`, and `etcds:` with TLS.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `prefix` | none | what all keys begin with |
//! | `timeout` | `4s` | how long a request may take with all its attempts |
//! | `connect_timeout` | `2s` | how long an attempt to connect may take |
//! | `password_env`, `password_file` | | where the password is, so that it need not stand in the URL |
//! | `ca` | the system's | a file of authorities, with TLS |
//! | `cert`, `key` | none | files of a certificate and its key, by which the server knows us, with TLS |
//!
//! # What is guaranteed
//! - Mutual exclusion and first come, first served, judged by etcd's revisions, as long as a majority of the members keeps its
//!   data. Whoever locks the same name by etcd's own `concurrency` package, or by `etcdctl lock`, stands in the same line.
//! - Fencing tokens are create revisions: they grow over failures, changes of the leader and restarts.
//! - A lease's deadline is counted from the send of the request that made or renewed it. A lock never outlives its lease.
//! - A handoff wakes the next in line alone, by one watch for a process. Streams that break are made again by themselves.
//!
//! # What is not
//! - Without a majority nothing is granted, renewed or released.
//! - A lease is whole seconds long, and [2 at least](fencepost_core::Capabilities::min_ttl). A process that dies keeps its locks
//!   until it ends.
//! - An operator who deletes a holder's key breaks in. The holder is told within 100 ms once it has held for a second, before that
//!   when it releases.

mod backend;
mod calm;
mod config;
mod enter;
mod entry;
mod error;
mod examine;
mod folder;
mod greeting;
mod held;
mod keys;
mod lease;
mod leave;
mod listing;
mod login;
mod member;
mod native;
mod near;
mod net;
mod peer;
mod proto;
mod session;
mod shared;
mod watch;

pub use backend::open;
pub use config::SCHEMES;
pub use native::{Held, Write};

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
