//! The faults that a test can make in an engine.

use fencepost_core::sync::Mutex;
use std::fmt;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// The hooks of one engine. A hook that the engine does not implement returns [`Fault::NotSupported`]. The
/// cases that need it are then excused.
pub trait Faults: Send {
    /// Whether this is a server on a network. Then it can be killed and restarted, and its network can be
    /// cut, silenced and delayed.
    fn is_server(&self) -> bool {
        false
    }

    /// Kills the server without warning (SIGKILL).
    ///
    /// # Errors
    /// Returns an error if the engine does not support it, or if the system refuses.
    fn kill(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("kill"))
    }

    /// Starts it again on the same address, with the data that it still has.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it, or if it does not start.
    fn restart(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("restart"))
    }

    /// Stops the server where it is (SIGSTOP).
    ///
    /// # Errors
    /// Returns an error if the engine does not support it, or if the system refuses.
    fn stop(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("stop"))
    }

    /// Lets it run again (SIGCONT).
    ///
    /// # Errors
    /// Returns an error if the engine does not support it, or if the system refuses.
    fn cont(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("continue"))
    }

    /// Closes all connections and refuses new ones.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it.
    fn cut(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("cut"))
    }

    /// Refuses new connections, as a server does that has no free one. Open connections stay.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it.
    fn refuse(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("refuse"))
    }

    /// Holds back all bytes in both directions, without closing a connection.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it.
    fn silence(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("silence"))
    }

    /// Delays all bytes in both directions.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it.
    fn delay(&mut self, _by: Duration) -> Result<(), Fault> {
        Err(Fault::NotSupported("delay"))
    }

    /// Undoes [`cut`](Faults::cut), [`refuse`](Faults::refuse), [`silence`](Faults::silence) and [`delay`](Faults::delay).
    ///
    /// # Errors
    /// Returns an error if the engine does not support it.
    fn mend(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("mend"))
    }

    /// Steps the server's wall clock by this number of seconds, in either direction.
    ///
    /// # Errors
    /// Returns an error if the engine does not support it, or if the shim cannot be loaded.
    fn jump(&mut self, _seconds: i64) -> Result<(), Fault> {
        Err(Fault::NotSupported("clock jump"))
    }
}

/// An engine that cases share has its hooks behind a lock.
impl<F: Faults> Faults for Arc<Mutex<F>> {
    fn is_server(&self) -> bool {
        inner(self).is_server()
    }

    fn kill(&mut self) -> Result<(), Fault> {
        inner(self).kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        inner(self).restart()
    }

    fn stop(&mut self) -> Result<(), Fault> {
        inner(self).stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        inner(self).cont()
    }

    fn cut(&mut self) -> Result<(), Fault> {
        inner(self).cut()
    }

    fn refuse(&mut self) -> Result<(), Fault> {
        inner(self).refuse()
    }

    fn silence(&mut self) -> Result<(), Fault> {
        inner(self).silence()
    }

    fn delay(&mut self, by: Duration) -> Result<(), Fault> {
        inner(self).delay(by)
    }

    fn mend(&mut self) -> Result<(), Fault> {
        inner(self).mend()
    }

    fn jump(&mut self, seconds: i64) -> Result<(), Fault> {
        inner(self).jump(seconds)
    }
}

fn inner<F>(shared: &Arc<Mutex<F>>) -> MutexGuard<'_, F> {
    shared.lock()
}

/// The reason why a fault could not be made.
#[derive(Debug)]
pub enum Fault {
    /// The engine has no such hook.
    NotSupported(&'static str),
    /// The system refused.
    Io(io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotSupported(what) => write!(f, "this engine has no hook for the fault \"{what}\""),
            Fault::Io(error) => write!(f, "the fault could not be made: {error}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl From<nix::Error> for Fault {
    fn from(error: nix::Error) -> Fault {
        Fault::Io(error.into())
    }
}
