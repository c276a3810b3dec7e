//! ZooKeeper, started from the jars of Debian's packages: one server, and an ensemble of three.
//!
//! - [`ZooKeeper`]: one server. [`Proxied`]: one whose network can be cut, silenced and slowed down.
//! - [`Ensemble`]: three servers, each behind a proxy.
//! - [`word`]: an operator's question in four letters.
//!
//! Everything listens on the loopback interface, keeps its files in a temporary folder and is gone with the test process,
//! however that ends.

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
