//! etcd as people run it, started from the `etcd` of the system.
//!
//! - [`Etcd`]: one server. [`Proxied`]: one whose network can be cut, silenced and slowed down.
//! - [`Cluster`]: three members, each behind such a network.
//! - [`Look`]: an operator's eyes and hands, by `etcdctl`.
//!
//! Everything listens on the loopback interface, keeps its files in a temporary folder and is gone with the test process,
//! however that ends. [`Config::in_memory`] keeps them in memory, so that nothing waits for a disk.

mod cluster;
mod config;
mod look;
mod proxied;
mod server;

pub use cluster::Cluster;
pub use config::Config;
pub use look::Look;
pub use proxied::Proxied;
pub use server::Etcd;
