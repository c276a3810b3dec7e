//! The connections of a client: those that hold locks for many claims, and those on which one claim waits.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Runtime, SingleFlight};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::server::Server;
use crate::failure::Failure;
use crate::pool::{Kept, Lent, Permit, Pool};

/// How many connections hold locks at most: one for each length of a lease, which is the connection's idle timeout.
const MAX_HOLDING: usize = 4;

/// The connections of a client.
pub struct LockConnections<S: Server> {
    server: Arc<S>,
    runtime: Runtime,
    /// By idle timeout. `None` once the client is closed.
    holding: Mutex<Option<HashMap<Duration, Arc<Holding<S>>>>>,
    /// Each serves one claim, which waits in the server's queue.
    alone: Pool<Arc<Connection<S>>>,
}

struct Holding<S: Server> {
    connection: Mutex<Option<Arc<Connection<S>>>>,
    opening: SingleFlight<Result<Arc<Connection<S>>, Failure>>,
    /// The ping of a connection that holds nothing.
    pinging: SingleFlight<()>,
}

impl<S: Server> Default for Holding<S> {
    fn default() -> Holding<S> {
        Holding {
            connection: Mutex::default(),
            opening: SingleFlight::default(),
            pinging: SingleFlight::default(),
        }
    }
}

impl<S: Server> Holding<S> {
    fn current(&self) -> Option<Arc<Connection<S>>> {
        self.connection.lock().clone().filter(|connection| !connection.has_ended())
    }
}

/// A connection on which a claim waits or holds alone.
pub type Alone<S> = Lent<Arc<Connection<S>>>;

impl<S: Server> Kept for Arc<Connection<S>> {
    fn has_ended(&self) -> bool {
        Connection::has_ended(self)
    }

    fn end(self) {
        Connection::end(&self);
    }
}

impl<S: Server> LockConnections<S> {
    pub(super) fn new(server: Arc<S>, runtime: Runtime) -> LockConnections<S> {
        let waiting = server.url().connections.saturating_sub(MAX_HOLDING).max(1);
        LockConnections {
            server,
            runtime,
            holding: Mutex::new(Some(HashMap::new())),
            alone: Pool::new(waiting, waiting),
        }
    }

    /// Returns a connection that holds locks whose leases last `ttl`. Opens it if there is none. If the client may open no more, the idle
    /// timeout of the connection can be shorter than `ttl`.
    ///
    /// # Errors
    /// Those of the server's [`connect`](Server::connect).
    ///
    /// # Cancel safety
    /// May be dropped; a connection that is being opened stays for later callers.
    pub async fn holding(&self, ttl: Duration) -> Result<Arc<Connection<S>>, Failure> {
        let ttl = S::idle_for(ttl);
        let (idle, holding) = {
            let mut known = self.holding.lock();
            let known = known.as_mut().ok_or_else(Failure::closed)?;
            let most = MAX_HOLDING.min(self.server.url().connections - 1);
            let idle = if known.contains_key(&ttl) || known.len() < most {
                ttl
            } else {
                // A timeout that is shorter is raised before a lock is taken. A longer one frees the lock of a silent client later.
                *known
                    .keys()
                    .filter(|idle| **idle >= ttl)
                    .min()
                    .or(known.keys().max())
                    .expect("some are known")
            };
            (idle, Arc::clone(known.entry(idle).or_default()))
        };
        if let Some(connection) = holding.current() {
            return Ok(connection);
        }
        let (server, runtime, own) = (Arc::clone(&self.server), self.runtime.clone(), Arc::clone(&holding));
        let opening = async move {
            // Another claim may have opened it meanwhile.
            if let Some(connection) = own.current() {
                return Ok(connection);
            }
            let connection = Connection::new(&server, &runtime, server.connect(idle, true).await?, idle);
            *own.connection.lock() = Some(Arc::clone(&connection));
            runtime.spawn(keep_open(runtime.clone(), Arc::downgrade(&connection)));
            Ok(connection)
        };
        let opened = holding.opening.join(&self.runtime, opening).await;
        opened.unwrap_or_else(|| Err(Failure::closed())).inspect_err(|_| self.end_unanswered())
    }

    /// Ends the connections that hold nothing and do not answer, after no connection could be opened. The server may hang and keep them open
    /// for as long as the longest lease that they were used for, and until then the client uses no other server.
    fn end_unanswered(&self) {
        while self.alone.end_idle(|_| true) {}
        let known: Vec<_> = self.holding.lock().iter().flat_map(HashMap::values).map(Arc::clone).collect();
        for holding in known {
            let Some(connection) = holding.current().filter(|connection| connection.holds_nothing()) else {
                continue;
            };
            let runtime = self.runtime.clone();
            self.runtime.spawn(async move {
                let ping = async move {
                    if connection.ping(connection.idle()).await.is_err() {
                        connection.end_unless_holding();
                    }
                };
                holding.pinging.join(&runtime, ping).await;
            });
        }
    }

    /// Returns a connection for statements that may wait for others, and so would hold up claims. `None`: claims have all of them. Runs on
    /// the client's own thread.
    ///
    /// # Errors
    /// Those of the server's [`connect`](Server::connect).
    ///
    /// # Cancel safety
    /// May be dropped; a connection that is being opened is closed.
    pub async fn aside(&self, ttl: Duration) -> Result<Option<Alone<S>>, Failure> {
        match self.try_permit() {
            Some(permit) => self.alone(permit, ttl).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the right to a connection on which a claim can wait, if there is one.
    pub(super) fn try_permit(&self) -> Option<Permit> {
        self.alone.try_permit()
    }

    /// Returns the right to a connection on which a claim can wait, first come, first served.
    pub(super) async fn permit(&self) -> Result<Permit, Failure> {
        self.alone.permit().await
    }

    /// Returns a connection on which a claim can wait. Runs on the client's own thread.
    pub(super) async fn alone(&self, mut permit: Permit, ttl: Duration) -> Result<Alone<S>, Failure> {
        if let Some(connection) = self.alone.take(&mut permit)? {
            let alone = self.alone.lend(connection, permit);
            alone.connection().set_idle(ttl).await?;
            return Ok(alone);
        }
        let idle = S::idle_for(ttl);
        let opened = self.server.connect(idle, false).await.inspect_err(|_| self.end_unanswered())?;
        let connection = Connection::new(&self.server, &self.runtime, opened, idle);
        let (pool, weak) = (self.alone.clone(), Arc::downgrade(&connection));
        self.runtime.spawn(end_unused(self.runtime.clone(), pool, weak));
        Ok(self.alone.lend(connection, permit))
    }

    /// Returns when a statement that is sent now takes too long: with the time in which a connection is opened.
    pub(super) fn time_limit(&self) -> Moment {
        let url = self.server.url();
        self.runtime.clock().now() + url.timeout + url.connect_timeout
    }

    /// Returns the error of a statement that took too long.
    pub(super) fn timeout(&self) -> Failure {
        Failure::timeout(self.server.name())
    }

    /// Ends all connections that hold locks for many claims, and lets no claim wait any more.
    pub fn close(&self) {
        let holding = self.holding.lock().take();
        for holding in holding.into_iter().flat_map(HashMap::into_values) {
            if let Some(connection) = holding.connection.lock().take() {
                connection.end();
            }
        }
        self.alone.close();
    }
}

/// Keeps a connection open that holds nothing, so that the next lock does not wait for a new one. Ends a connection that is silent.
async fn keep_open<S: Server>(runtime: Runtime, connection: Weak<Connection<S>>) {
    let clock = runtime.clock();
    loop {
        let Some(next) = connection.upgrade().map(|connection| connection.unused_until()) else { return };
        clock.sleep_until(next).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.has_ended()) else {
            return;
        };
        if clock.is_stopped() || connection.end_if_silent() {
            return;
        }
        if connection.unused_until() <= clock.now() {
            // If it fails often enough the connection ends.
            let _ = connection.ping(connection.idle()).await;
        }
    }
}

/// Ends a connection that nobody has used for a third of its idle timeout, and one that is silent unless a claim waits on it.
async fn end_unused<S: Server>(
    runtime: Runtime,
    alone: Pool<Arc<Connection<S>>>,
    connection: Weak<Connection<S>>,
) {
    let clock = runtime.clock();
    let Some(mut next) = connection.upgrade().map(|connection| connection.unused_until()) else { return };
    loop {
        clock.sleep_until(next).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.has_ended()) else {
            return;
        };
        if clock.is_stopped() {
            return;
        }
        // A lost claim may never be released, and nobody may take a grant that was waited for. The connection to a server that hangs would
        // then keep the client off the next server.
        if !connection.is_waiting() && connection.end_if_silent() {
            return;
        }
        next = connection.unused_until();
        if clock.now() < next {
            continue;
        }
        let is_meant = |known: &Arc<Connection<S>>| Arc::ptr_eq(known, &connection);
        if alone.end_idle(is_meant) {
            return;
        }
        // The claim that waits on it may hold soon, so this looks again after a third of the timeout.
        next = clock.now() + connection.idle() / 3;
    }
}
