//! ZooKeeper for tests, started from the jars of Debian's packages.
//!
//! - [`ZooKeeper`]: one server. [`Proxied`]: one behind a proxy that can cut, silence and delay its network.
//! - [`Ensemble`]: three servers, each behind a proxy.
//! - [`word`]: an operator's four-letter command.
//!
//! Every server listens on the loopback interface, keeps its files in a temporary folder, and ends with the
//! test process in every case.

mod archive;
mod config;
mod ensemble;
mod look;
mod proxied;
mod server;

pub use config::{Config, class_path};
pub use ensemble::Ensemble;
pub use look::{ephemerals, word};
pub use proxied::Proxied;
pub use server::ZooKeeper;
