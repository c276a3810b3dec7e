//! ZooKeeper engine of fencepost: locks on the same nodes as Curator, kazoo and other libraries.
//!
//! Register it with [`register`].
//!
//! A URL is `zookeeper://h1,h2:2181/app/locks`, or `zookeepers:` with TLS (default port 2281). `user:password@` names a user of the scheme
//! digest. The options:
//!
//! | option | values | meaning |
//! |---|---|---|
//! | `session` | `30s` (default), `100ms` to `60m` | the session timeout; the server decides |
//! | `timeout` | `5s` (default) | the most time that one request takes, connecting included |
//! | `layout` | `curator` (default), `kazoo` | the library whose names of folders and nodes are used |
//! | `node` | as `{name}/_c_{hex}-lock-` | names for the small clients that use others |
//! | `watch` | `folders` (default), `nodes` | whether folders are followed by recursive watches; servers before 3.6 have none, which is detected |
//! | `acl` | `open`, `creator` | who may do what with the nodes; `creator` by default where there is a user |
//! | `data` | up to 4096 bytes | a text of the caller that each node contains |
//! | `password_env`, `password_file` | a name, a path | where the password is, if not in the URL |
//! | `ca` | a path | the authorities to trust, with `zookeepers:`; the system's by default |
//! | `cert`, `key` | paths | a certificate and its key, by which the server knows this client, with `zookeepers:` |
//!
//! # Guarantees
//! - Mutual exclusion between all clients of one ensemble that use the same layout, in any language.
//! - First come, first served, in the order in which the servers made the nodes.
//! - A grant never outlives its session. When no quorum confirms the session, its holder loses its locks, by its own clock, before the
//!   server grants them to another client. Validity counts from the sending of the last request that a quorum answered, less a fourth of the
//!   session timeout, less the usual margin.
//! - The claims of a holder or waiter that dies end with its session.
//! - The token is the transaction that made the node (its `czxid`): it grows as long as the ensemble keeps its data.
//!
//! # Limits
//! - This client ends a lease (`ttl`) that is shorter than the session. If the client dies, the lock is free when the session ends.
//! - A grant cannot be detached from its process: nothing outlives its session.
//! - Curator keeps mutexes, read-write locks and semaphores apart although they may share a folder. A claim that finds one of another kind is
//!   refused. The other library cannot see the reverse order, and then two hold: use one [`Kind`](fencepost_core::Kind) for a name.

mod backend;
mod claim;
mod client;
mod config;
mod doctor;
mod error;
mod guarded;
mod operator;
mod place;
mod recipe;
mod session;
mod watch;

pub use backend::open;
pub use config::SCHEMES;
pub use guarded::{Guarded, Write};

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
