//! The lock service as an engine: `fencepost serve` gives its locks over HTTP to programs that may not reach the engine itself.
//!
//! `http://host[:port][/path]`, and `https:` with TLS.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `token_env`, `token_file` | the variable `FENCEPOST_SERVICE_TOKEN` | environment variable or file with the token of this caller |
//! | `timeout` | `5s` | time limit of a request |
//! | `connect_timeout` | `2s` | time limit of an attempt to connect |
//! | `ca` | the system's | with TLS: a file of certificate authorities |
//! | `cert`, `key` | none | with TLS: the files of the client's certificate and its key |
//!
//! # What is guaranteed
//! - Locks, tokens and their order are those of the engine behind the service.
//! - Validity counts from before the request was sent. A slow network cannot make a holder believe too long.
//! - A request whose reply was lost is repeated with the same idempotency key. It finds its own grant, at each copy of the service.
//! - A waiter waits by a long poll. A waiter that is dropped leaves the queue.
//!
//! # What is not
//! - A waiter that loses its copy of the service queues again at the end, up to 10 s later.
//! - Leases cannot be detached, read locks not upgraded. No stored limits of permits are kept.
//! - The position in the queue of a killed process stays for 5 s. Its locks end with their leases.

mod backend;
mod client;
mod config;
mod conn;
mod doctor;
mod error;
mod operator;
mod place;
mod records;
mod session;

pub use backend::open;
pub use config::SCHEMES;

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
