//! What an engine provides to be put under the suite.

use crate::faults::Faults;
use fencepost_core::{Backend, Result, Runtime};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A boxed future.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An engine under test.
pub trait Fixture: Send + Sync {
    /// A fresh place at the engine, that no other case sees.
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>>;
}

/// A place at the engine: what one case uses.
pub trait Namespace: Send + Sync {
    /// The engine for one more client of this place.
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>>;

    /// What is at the engine now that would not be there if nobody had ever locked anything, other than what the engine
    /// keeps on purpose (its last tokens, its history). `None`: nobody can look into it but by its own listing.
    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async { None })
    }

    /// Hooks to trouble the engine of this place with, where it is a server of its own. `None`: it has none.
    fn faults(&self) -> Option<Box<dyn Faults>> {
        None
    }

    /// Has another process hold this name exclusively for a lease of `ttl`, renewed, as soon as this returns. `None`: the
    /// engine does not outlive a process.
    fn elsewhere(&self, _name: &str, _ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        None
    }

    /// How long after a holder's process was killed its lock may stay locked: the lease, unless the engine can tell sooner.
    fn crash_bound(&self, ttl: Duration) -> Duration {
        ttl
    }
}

/// A process that holds a lock. Dropped, it is killed and waited for.
pub trait Elsewhere: Send {
    /// Kills it with SIGKILL and waits for its end.
    fn kill(&mut self);

    /// Stops it with SIGSTOP.
    fn stop(&mut self);

    /// Lets it run on.
    fn cont(&mut self);
}
