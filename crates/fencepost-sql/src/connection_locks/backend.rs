//! Implements core's [`Backend`] with the locks of connections.

use std::sync::Arc;

use fencepost_core::{
    Backend, Capabilities, Claim, Entry, Eviction, How, Info, Listing, LocalQueue, Name, Operator, Page,
    RecordStore, Reply, Report, Result, Runtime, Token,
};

use crate::connection_locks::{ConnectionLocks, Server};
use crate::failure::named;
use crate::records::TableOfRecords;

/// At most `MAX_QUEUED` claims of a process for a name are in its clients, of which one for each client waits at the server; the others wait
/// in core.
const MAX_QUEUED: u32 = 8;

/// A server whose locks operators can look at.
pub trait Operators: Server {
    /// Changes what the locks of all servers can do to what those of this one can.
    fn adjust(locks: &ConnectionLocks<Self>, capabilities: &mut Capabilities);

    /// Returns the claims of a name.
    fn inspect(locks: &ConnectionLocks<Self>, name: &Name) -> impl Future<Output = Result<Info>> + Send;

    /// Returns a page of the names that begin with `prefix`.
    fn list(
        locks: &ConnectionLocks<Self>,
        prefix: &str,
        page: &Page,
    ) -> impl Future<Output = Result<Listing>> + Send;

    /// Evicts the holder whose grant has `token`.
    fn evict(
        locks: &Arc<ConnectionLocks<Self>>,
        name: &Name,
        token: Token,
        how: &Eviction,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Checks the server. Nothing is changed.
    fn examine(locks: &ConnectionLocks<Self>) -> impl Future<Output = Result<Report>> + Send;
}

impl<S: Operators> ConnectionLocks<S> {
    /// Returns core's view of the locks, with the records beside them. Clients of a process with the same `key` share a limit of waiters.
    pub fn backend(
        self: Arc<ConnectionLocks<S>>,
        records: Arc<TableOfRecords>,
        key: &str,
    ) -> Arc<dyn Backend> {
        let queue = LocalQueue::new(MAX_QUEUED, key);
        Arc::new(LocksBackend { locks: self, records, queue })
    }
}

struct LocksBackend<S: Operators> {
    locks: Arc<ConnectionLocks<S>>,
    records: Arc<TableOfRecords>,
    queue: LocalQueue,
}

impl<S: Operators> Backend for LocksBackend<S> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(S::ENGINE);
        capabilities.upgrade = false;
        (capabilities.barging, capabilities.stored_permits) = (false, false);
        (capabilities.permits, capabilities.fair_permits) = (false, false);
        capabilities.replicas = false;
        (capabilities.detach, capabilities.no_detach) = (false, Some(S::CANNOT_DETACH));
        S::adjust(&self.locks, &mut capabilities);
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = self.locks.entry(claim, how);
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        named(S::ENGINE, async { Ok(ConnectionLocks::reach(&self.locks).await?) })
    }

    fn close(&self) -> Reply<'_, ()> {
        Reply::coming(async {
            self.records.close();
            self.locks.connections.close();
        })
    }
}

impl<S: Operators> Operator for LocksBackend<S> {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        named(S::ENGINE, S::inspect(&self.locks, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        named(S::ENGINE, S::list(&self.locks, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        named(S::ENGINE, S::evict(&self.locks, name, token, how))
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<TableOfRecords>::clone(&self.records))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        named(S::ENGINE, S::examine(&self.locks))
    }
}
