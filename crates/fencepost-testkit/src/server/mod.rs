//! Real servers for tests: on free ports, in temporary folders, ended with the test in every case.

mod certificate;
mod process;
mod proxied;
mod proxy;
mod temp;
mod warden;

pub(crate) use certificate::{certify, certify_for};
pub use process::{Plan, Server, With, free_port};
pub use proxied::{Proxied, Standalone};
pub use proxy::Proxy;
pub use temp::TempDir;
