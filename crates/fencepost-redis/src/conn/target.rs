//! The server that a connection leads to.

use std::fmt;
use std::sync::Arc;

use fencepost_core::sync::Mutex;

use crate::config::Address;
use crate::conn::sentinels::Sentinels;

/// The server that a connection leads to.
#[derive(Clone)]
pub(crate) enum Target {
    Fixed(Address),
    /// To the master, whichever server that is.
    Master(Arc<Sentinels>),
    /// To any node: another one after each failure.
    Any(Nodes),
}

/// Nodes of a cluster.
pub(crate) type Nodes = Arc<Mutex<Vec<Address>>>;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(address) => address.fmt(f),
            Target::Master(sentinels) => write!(f, "the master {}", sentinels.name),
            Target::Any(_) => f.write_str("the cluster"),
        }
    }
}
