//! PostgreSQL engine of fencepost: advisory locks of the server on few shared connections, or a lease table. It needs
//! PostgreSQL 14 or newer.
//!
//! `postgres://user[:password]@host[:port],…/database`
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `mode` | `advisory` | how a lock is kept: `advisory` (session advisory locks) or `table` (a lease table) |
//! | `table` | `fencepost_lock` | with `mode=table`: its name, as in `app.locks` |
//! | `prefix` | none | prefix of all names: clients with another prefix use other keys |
//! | `connections` | `16` | how many connections a client opens at most |
//! | `timeout` | `4s` | time limit of a statement |
//! | `connect_timeout` | `2s` | time limit of an attempt to connect |
//! | `password_env`, `password_file` | | environment variable or file with the password |
//! | `sslmode` | `disable` | `verify-full`: connect with TLS, and check the server's certificate and name |
//! | `ca` | the system's | with TLS: a file of certificate authorities |
//! | `cert`, `key` | none | with TLS: the files of the client's certificate and its key |
//!
//! # What is guaranteed by `mode=advisory`
//! - Locks exclude each other as long as the server runs. Waiters stand in the server's queue, first come, first served.
//! - A lock is held by a connection. The server frees it as soon as the connection ends, or when it has heard nothing of the client
//!   for the lock's `ttl` (`idle_session_timeout`).
//! - The holder learns at once that its connection ended. If the network is silent, the holder's deadline passes before the server
//!   frees the lock.
//! - Fencing tokens grow through crashes and restarts of the server.
//!
//! # What is not guaranteed by `mode=advisory`
//! - A restart of the server, and a failover to another one, frees all locks. Each holder is told; only its token stops a holder that
//!   does not look.
//! - A pooler in transaction mode breaks advisory locks. The engine refuses it when it connects, and ends a connection as soon as
//!   another backend answers.
//! - There are no permits. A semaphore needs `mode=table`.
//! - Advisory locks belong to one database of the server. Clients of another database do not exclude each other.
//!
//! # What is guaranteed by `mode=table`
//! - Locks exclude each other through crashes and restarts of the server. A lock is free when its lease has expired.
//! - No connection belongs to a lock. A pooler in transaction mode works.
//! - Fencing tokens grow for each lock, and are on the disk before the lock is granted.
//! - Leases end by the server's clock. If that clock is set forward, a lock may be granted early, with a greater token.

mod backend;
mod client;
mod config;
mod conn;
mod doctor;
mod error;
mod inbox;
mod keys;
mod operator;
mod schema;
mod table;

pub use backend::open;
pub use config::SCHEMES;

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    let add = |registry: fencepost_core::Registry, scheme: &&'static str| {
        registry.with(scheme, open).with_schema(scheme, schema::SCHEMA)
    };
    SCHEMES.iter().fold(registry, add)
}
