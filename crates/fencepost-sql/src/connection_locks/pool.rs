//! The connections of a client: those that hold locks for many claims, and those on which one claim waits.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Runtime, SingleFlight};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection_locks::connection::Connection;
use crate::connection_locks::server::Server;
use crate::failure::Failure;

/// How many connections hold locks at most: one for each length of a lease, which is the connection's idle timeout.
const MAX_HOLDING: usize = 4;

/// The connections of a client.
pub struct Pool<S: Server> {
    server: Arc<S>,
    runtime: Runtime,
    /// By idle timeout. `None` once the client is closed.
    holding: Mutex<Option<HashMap<Duration, Arc<Holding<S>>>>>,
    /// Connections that wait for no claim and hold nothing.
    unused: Arc<Mutex<Vec<Arc<Connection<S>>>>>,
    /// One permit for each connection on which a claim may wait. First come, first served.
    waiting: Arc<Semaphore>,
}

struct Holding<S: Server> {
    connection: Mutex<Option<Arc<Connection<S>>>>,
    opening: SingleFlight<Result<Arc<Connection<S>>, Failure>>,
}

impl<S: Server> Default for Holding<S> {
    fn default() -> Holding<S> {
        Holding { connection: Mutex::default(), opening: SingleFlight::default() }
    }
}

impl<S: Server> Holding<S> {
    fn current(&self) -> Option<Arc<Connection<S>>> {
        self.connection.lock().clone().filter(|connection| !connection.has_ended())
    }
}

/// A connection on which a claim waits or holds alone. Dropping it gives the connection back, if nothing is locked on it.
pub struct Exclusive<S: Server> {
    /// The connection.
    pub connection: Arc<Connection<S>>,
    clean: bool,
    unused: Arc<Mutex<Vec<Arc<Connection<S>>>>>,
    _permit: OwnedSemaphorePermit,
}

impl<S: Server> Exclusive<S> {
    /// Notes that nothing is locked on the connection any more.
    pub fn set_clean(&mut self) {
        self.clean = true;
    }
}

impl<S: Server> Drop for Exclusive<S> {
    fn drop(&mut self) {
        if self.clean && !self.connection.has_ended() {
            self.unused.lock().push(Arc::clone(&self.connection));
        } else {
            self.connection.end();
        }
    }
}

impl<S: Server> Pool<S> {
    pub(super) fn new(server: Arc<S>, runtime: Runtime) -> Pool<S> {
        let waiting = server.url().connections.saturating_sub(MAX_HOLDING).max(1);
        Pool {
            server,
            runtime,
            holding: Mutex::new(Some(HashMap::new())),
            unused: Arc::default(),
            waiting: Arc::new(Semaphore::new(waiting)),
        }
    }

    /// Returns a connection that holds locks whose leases last `ttl`. Opens it if there is none.
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
                // The lease counts for the shorter of both times. A longer timeout frees the lock of a silent client later.
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
        holding.opening.join(&self.runtime, opening).await.unwrap_or_else(|| Err(Failure::closed()))
    }

    /// Returns a connection for statements that may wait for others, and so would hold up claims. `None`: claims have all of them. Runs on
    /// the client's own thread.
    ///
    /// # Errors
    /// Those of the server's [`connect`](Server::connect).
    ///
    /// # Cancel safety
    /// May be dropped; a connection that is being opened is closed.
    pub async fn aside(&self, ttl: Duration) -> Result<Option<Exclusive<S>>, Failure> {
        match self.try_permit() {
            Some(permit) => self.exclusive(permit, ttl).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the right to a connection on which a claim can wait, if there is one.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_owned().ok()
    }

    /// Returns the right to a connection on which a claim can wait, first come, first served.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.waiting).acquire_owned().await.map_err(|_| Failure::closed())
    }

    /// Returns a connection on which a claim can wait. Runs on the client's own thread.
    pub(super) async fn exclusive(
        &self,
        permit: OwnedSemaphorePermit,
        ttl: Duration,
    ) -> Result<Exclusive<S>, Failure> {
        let unused = loop {
            match self.unused.lock().pop() {
                Some(connection) if connection.has_ended() => {}
                other => break other,
            }
        };
        let connection = match unused {
            Some(connection) => {
                connection.set_idle(ttl).await?;
                connection
            }
            None => {
                let idle = S::idle_for(ttl);
                let opened = self.server.connect(idle, false).await?;
                let connection = Connection::new(&self.server, &self.runtime, opened, idle);
                let (unused, weak) = (Arc::clone(&self.unused), Arc::downgrade(&connection));
                self.runtime.spawn(end_unused(self.runtime.clone(), unused, weak));
                connection
            }
        };
        Ok(Exclusive { connection, clean: false, unused: Arc::clone(&self.unused), _permit: permit })
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
        self.waiting.close();
        let holding = self.holding.lock().take();
        for holding in holding.into_iter().flat_map(HashMap::into_values) {
            if let Some(connection) = holding.connection.lock().take() {
                connection.end();
            }
        }
        self.unused.lock().drain(..).for_each(|connection| connection.end());
    }
}

/// Keeps a connection open that holds nothing: the next lock does not wait for a new one. Ends a connection that is silent.
async fn keep_open<S: Server>(runtime: Runtime, connection: Weak<Connection<S>>) {
    let clock = runtime.clock();
    loop {
        let Some(idle) = connection.upgrade().map(|connection| connection.idle()) else { return };
        clock.sleep_until(clock.now() + idle / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.has_ended()) else {
            return;
        };
        let (sent, free) = connection.usage();
        if clock.is_stopped() || connection.end_if_silent() {
            return;
        }
        if free && clock.now() >= sent + idle / 3 {
            // If it fails often enough the connection ends.
            let _ = connection.ping(idle).await;
        }
    }
}

/// Ends a connection that nobody has used for a third of its idle timeout.
async fn end_unused<S: Server>(
    runtime: Runtime,
    unused: Arc<Mutex<Vec<Arc<Connection<S>>>>>,
    connection: Weak<Connection<S>>,
) {
    let clock = runtime.clock();
    loop {
        let Some(idle) = connection.upgrade().map(|connection| connection.idle()) else { return };
        clock.sleep_until(clock.now() + idle / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.has_ended()) else {
            return;
        };
        if clock.is_stopped() {
            return;
        }
        let (sent, _) = connection.usage();
        if clock.now() >= sent + idle / 3 {
            let mut unused = unused.lock();
            if let Some(at) = unused.iter().position(|known| Arc::ptr_eq(known, &connection)) {
                unused.swap_remove(at);
                drop(unused);
                connection.end();
                return;
            }
        }
    }
}
