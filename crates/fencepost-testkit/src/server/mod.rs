//! Real servers for tests: on free ports, in temporary folders, ended with the test in every case.

mod certificate;
pub(crate) mod clock;
mod process;
mod proxied;
mod proxy;
mod signal;
mod temp;
mod warden;
mod web;

pub(crate) use certificate::certify_for;
pub use certificate::{ClientFiles, certify};
pub use process::{Plan, Server, With, free_port};
pub use proxied::{Proxied, Standalone};
pub use proxy::Proxy;
pub use signal::send;
pub use temp::TempDir;
pub use web::WebServer;

/// The hooks of [`Faults`](crate::faults::Faults) that a process has, for a type whose field `server` is a [`Server`].
macro_rules! process_faults {
    () => {
        fn kill(&mut self) -> Result<(), Fault> {
            self.server.kill()
        }

        fn restart(&mut self) -> Result<(), Fault> {
            self.server.restart()
        }

        fn stop(&mut self) -> Result<(), Fault> {
            self.server.stop()
        }

        fn cont(&mut self) -> Result<(), Fault> {
            self.server.cont()
        }
    };
}
pub(crate) use process_faults;
