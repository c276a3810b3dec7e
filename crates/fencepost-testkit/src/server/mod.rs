//! Real servers for tests: on free ports, in temporary folders, gone when the test is over, however it ends.

mod process;
mod proxy;
mod temp;
mod warden;

pub use process::{Plan, Server, With, free_port};
pub use proxy::Proxy;
pub use temp::TempDir;
