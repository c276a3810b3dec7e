//! ZooKeeper engine of fencepost: locks beside Curator, kazoo and their kin on the same nodes.
//!
//! Register it with [`register`].
//!
//! `zookeeper://h1,h2:2181/app/locks`, or `zookeepers:` with TLS (the port is then 2281 by default), with a user of the scheme
//! digest as `user:password@`, and these options:
//!
//! | option | values | meaning |
//! |---|---|---|
//! | `session` | `30s` (default), `100ms` to `60m` | the session's length; the server has the last word |
//! | `timeout` | `5s` (default) | how long one request may take, connecting included |
//! | `layout` | `curator` (default), `kazoo` | whose names of folders and nodes are used |
//! | `node` | as `{name}/_c_{hex}-lock-` | names for the small clients that use others |
//! | `watch` | `folders` (default), `nodes` | whether folders are followed by recursive watches; servers before 3.6 have none, which is found out |
//! | `acl` | `open`, `creator` | who may do what with our nodes; `creator` by default where there is a user |
//! | `data` | up to 4096 bytes | a text of the caller's that each node carries |
//! | `password_env`, `password_file` | a name, a path | where the password is, if not in the URL |
//! | `ca` | a path | the authorities to trust, with `zookeepers:`; the system's by default |
//! | `cert`, `key` | paths | a certificate and its key, by which the server knows us, with `zookeepers:` |
//!
//! # What is guaranteed
//! - Mutual exclusion between all clients of one ensemble that keep to the same layout, in whatever language.
//! - First come, first served, by the order in which the servers made the nodes.
//! - A grant never outlives the session it was made in. A holder whose session is not confirmed by a quorum any more knows that
//!   it has lost its locks before the server gives them away, by its own clock: validity counts from the sending of the last
//!   request that a quorum answered, less a fourth of the session's length, and less the usual margin.
//! - A holder or waiter that dies is gone with its session.
//! - The token is the transaction that made the node (its `czxid`): it grows as long as the ensemble's data is there.
//!
//! # What is not
//! - A lease (`ttl`) shorter than the session ends by this client's own doing. If the client dies the session has to end first.
//! - No grant can be detached from its process: nothing outlives its session.
//! - Curator keeps mutexes, read-write locks and semaphores apart although they may share a folder. A claim that finds one of another kind is
//!   refused. The other library cannot see the reverse order, and then two hold: use one [`Kind`](fencepost_core::Kind) for a name.

mod backend;
mod child;
mod config;
mod count;
mod crowd;
mod entry;
mod error;
mod evict;
mod examine;
mod guarded;
mod held;
mod holding;
mod layout;
mod link;
mod listing;
mod mixed;
mod name;
mod own;
mod runner;
mod shared;
mod spot;
mod standing;
mod tunnel;
mod versions;
mod view;

pub use backend::open;
pub use config::SCHEMES;
pub use guarded::{Guarded, Write};

/// Adds every scheme of this crate to a registry.
#[must_use]
pub fn register(registry: fencepost_core::Registry) -> fencepost_core::Registry {
    SCHEMES.iter().fold(registry, |registry, scheme| registry.with(scheme, open))
}
