//! The interface that an engine implements to run the suite.

use crate::faults::Faults;
use crate::needs::Program;
use fencepost_core::{Backend, Result, Runtime};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A boxed future.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An engine under test.
pub trait Fixture: Send + Sync {
    /// Returns the programs that the engine needs. Where one is missing, its cases are skipped.
    fn needs(&self) -> &'static [Program] {
        &[]
    }

    /// Returns the name of its row in the table of docs/library.md. `None`: a layer or another deployment, which has no row.
    fn page_row(&self) -> Option<&'static str> {
        None
    }

    /// Makes a fresh namespace at the engine, which no other case uses.
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>>;
}

/// The part of the engine that one case uses.
pub trait Namespace: Send + Sync {
    /// Opens the engine for one more client of this namespace.
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>>;

    /// Returns the entries at the engine that would not be there if nothing had ever been locked, except
    /// those that the engine keeps on purpose (its last tokens, its history). `None` means that only its own
    /// listing can show them.
    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async { None })
    }

    /// Makes format 2 of the format of each record that a server stores for this namespace. `false`: no server stores records.
    fn raise_format(&self) -> Fut<'_, bool> {
        Box::pin(async { false })
    }

    /// Returns hooks that make faults in this engine, if it is a server of its own. Only cases that need them ask.
    fn faults(&self) -> Option<Box<dyn Faults>> {
        None
    }

    /// The case has passed, and all its clients are closed: another case may use the server.
    fn passed(&self) {}

    /// Makes another process hold this name exclusively for a lease of `ttl`, which it renews. Returns when
    /// it holds. `None` means that the engine does not outlive a process.
    fn elsewhere(&self, _name: &str, _ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        None
    }

    /// Whether claims that hold together have tokens in the order of the queue. An engine that draws a token after the grant
    /// does not promise that.
    fn ordered_tokens(&self) -> bool {
        true
    }

    /// Whether a claim that waits stands in the engine's queue, and in none of its client.
    fn arrivals_seen(&self) -> bool {
        true
    }

    /// Returns how long a lock may stay locked after its holder's process was killed. That is the lease,
    /// unless the engine notices sooner.
    fn crash_bound(&self, ttl: Duration) -> Duration {
        ttl
    }
}

/// A process that holds a lock. When it is dropped, it is killed and waited for.
pub trait Elsewhere: Send {
    /// Kills it with SIGKILL and waits for its end.
    fn kill(&mut self);

    /// Stops it with SIGSTOP.
    fn stop(&mut self);

    /// Lets it run again (SIGCONT).
    fn cont(&mut self);

    /// Makes it drop its guard and its client and return from `main`. Waits for its end.
    fn end(&mut self);

    /// Whether it says that it has lost the lock. Waits a while for that.
    fn has_lost(&mut self) -> bool;
}
