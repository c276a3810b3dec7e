//! What can be done to an engine while it is under test.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The hooks of one engine. Each answers [`Fault::NotSupported`] unless the engine implements it, and the cases that need
/// one are then listed as excused by that.
pub trait Faults: Send {
    /// Whether this is a server on a network: it can be killed and started again, and its network can be cut, silenced and
    /// slowed down.
    fn is_server(&self) -> bool {
        false
    }

    /// Kills the server without warning (SIGKILL).
    ///
    /// # Errors
    /// Not supported, or the system refused.
    fn kill(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("kill"))
    }

    /// Starts it again on the same address with the data it has left.
    ///
    /// # Errors
    /// Not supported, or it does not come up.
    fn restart(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("restart"))
    }

    /// Stops the server where it stands (SIGSTOP).
    ///
    /// # Errors
    /// Not supported, or the system refused.
    fn stop(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("stop"))
    }

    /// Lets it run on (SIGCONT).
    ///
    /// # Errors
    /// Not supported, or the system refused.
    fn cont(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("continue"))
    }

    /// Cuts all connections and refuses new ones.
    ///
    /// # Errors
    /// Not supported.
    fn cut(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("cut"))
    }

    /// Swallows what is sent in either direction, without closing anything: a network that has gone dark.
    ///
    /// # Errors
    /// Not supported.
    fn silence(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("silence"))
    }

    /// Delays everything in both directions.
    ///
    /// # Errors
    /// Not supported.
    fn delay(&mut self, _by: Duration) -> Result<(), Fault> {
        Err(Fault::NotSupported("delay"))
    }

    /// Undoes [`cut`](Faults::cut), [`silence`](Faults::silence) and [`delay`](Faults::delay).
    ///
    /// # Errors
    /// Not supported.
    fn mend(&mut self) -> Result<(), Fault> {
        Err(Fault::NotSupported("mend"))
    }

    /// Steps the server's wall clock by so many seconds, in either direction.
    ///
    /// # Errors
    /// Not supported, or the shim cannot be loaded.
    fn jump(&mut self, _seconds: i64) -> Result<(), Fault> {
        Err(Fault::NotSupported("clock jump"))
    }
}

/// What cases share is troubled through a lock.
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
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a fault could not be made.
#[derive(Debug)]
pub enum Fault {
    /// This engine has no such hook.
    NotSupported(&'static str),
    /// The system said no.
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
