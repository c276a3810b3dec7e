//! The server that a connection leads to.

use std::fmt;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use futures_util::future::BoxFuture;

use crate::config::Address;
use crate::error::Failure;

/// Finds the master of a deployment.
pub(crate) trait FindMaster: Send + Sync {
    /// Returns the master's name.
    fn name(&self) -> &str;

    /// Returns the number of sentinels that can be asked, at least 1.
    fn sentinels(&self) -> usize;

    /// Returns the master's address. To be called within a tokio runtime.
    fn master(&self) -> BoxFuture<'_, Result<Address, Failure>>;

    /// Asks another sentinel first from now on.
    fn ask_next(&self);
}

/// A sentinel's answer that has not led to a connection. When it is dropped, also at the time limit of the attempt,
/// another sentinel comes first.
pub(crate) struct Unused<'a>(Option<&'a dyn FindMaster>);

impl<'a> Unused<'a> {
    pub(crate) fn new(sentinels: &'a dyn FindMaster) -> Unused<'a> {
        Unused(Some(sentinels))
    }

    /// The answer has led to a connection: the same sentinel comes first next time.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(sentinels) = self.0 {
            sentinels.ask_next();
        }
    }
}

/// The server that a connection leads to.
#[derive(Clone)]
pub(crate) enum Target {
    Fixed(Address),
    /// To the master, whichever server that is.
    Master(Arc<dyn FindMaster>),
    /// To any node: another one after each failure.
    Any(Nodes),
}

/// Nodes of a cluster.
pub(crate) type Nodes = Arc<Mutex<Vec<Address>>>;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(address) => address.fmt(f),
            Target::Master(sentinels) => write!(f, "the master {}", sentinels.name()),
            Target::Any(_) => f.write_str("the cluster"),
        }
    }
}
