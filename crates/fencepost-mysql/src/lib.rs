//! MySQL and MariaDB engine of fencepost: locks by `GET_LOCK` on few shared connections, or a lease table. It needs
//! MySQL 5.7.5 or MariaDB 10.2.
//!
//! `mysql://user[:password]@host[:port],…/database`, or `mariadb://` with the same meaning.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `mode` | `named` | how a lock is kept: `named` (`GET_LOCK`) or `table` (a lease table) |
//! | `table` | `fencepost_lock` | with `mode=table`: its name, as in `locks` or `app.locks` |
//! | `prefix` | none | prefix of all names |
//! | `connections` | `16` | how many connections a client opens at most |
//! | `timeout` | `4s` | time limit of a statement |
//! | `connect_timeout` | `2s` | time limit of an attempt to connect |
//! | `password_env`, `password_file` | | environment variable or file with the password |
//! | `sslmode` | `disable` | `verify-full`: connect with TLS, and check the server's certificate and name |
//! | `ca` | the system's | with TLS: a file of certificate authorities |
//! | `cert`, `key` | none | with TLS: the files of the client's certificate and its key |
//!
//! # What is guaranteed by `mode=named`
//! - Locks exclude each other as long as the server runs. Waiters stand in the server's queue, first come, first served.
//! - A lock is held by a connection. The server frees it as soon as the connection ends, or when it has heard nothing of the client
//!   for the lock's `ttl`, in whole seconds (`wait_timeout`).
//! - The holder learns at once that its connection ended. If the network is silent, the holder's deadline passes before the server
//!   frees the lock.
//! - Fencing tokens grow through crashes and restarts of the server. They come from the table `fencepost_token`. The engine makes it
//!   if the user may. Otherwise there are no tokens, and [`Tokens::None`](fencepost_core::Tokens::None) says so.
//!
//! # What is not guaranteed by `mode=named`
//! - There are no shared locks and no permits. Both need `mode=table`.
//! - A restart of the server, and a failover to another one, frees all locks. Each holder is told; only its token stops a holder that
//!   does not look.
//! - The nodes of a Galera cluster do not share `GET_LOCK`. Such nodes are refused, and so are proxies that pool connections.
//!
//! # What is guaranteed by `mode=table`
//! - Locks exclude each other through crashes and restarts of the server, if its commits are durable. A lock is free when its lease is
//!   over. There are shared locks, permits and detached leases. Waiters are granted first come, first served.
//! - No connection belongs to a lock.
//! - Fencing tokens grow for each lock, also after a crash that lost commits, unless the server's clock steps back.
//! - Leases end by the server's clock. If that clock is set forward, a lock may be granted early, with a greater token.
//! - The server sends no messages. A waiter of another process polls: the first one every 50 to 100 ms.
//!
//! # MySQL
//! - The engine is tested with MySQL 9.7. For older versions it keeps to the documented behaviour of MySQL.

mod backend;
mod client;
mod config;
mod conn;
mod doctor;
mod error;
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
