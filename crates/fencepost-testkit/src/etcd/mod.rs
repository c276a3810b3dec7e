//! etcd servers for tests, started from the system's `etcd`.
//!
//! - [`Etcd`]: one server. [`Proxied`]: one behind a proxy that can cut, silence and delay its network.
//! - [`Cluster`]: three members, each behind such a proxy.
//! - [`Look`]: an operator's commands, through `etcdctl`.
//!
//! Every server listens on the loopback interface, keeps its files in a temporary folder, and ends with the
//! test process in every case. [`Config::in_memory`] keeps the files in memory, so that nothing waits for a
//! disk.

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
