//! The connections of a client: those that hold locks for many claims, and those on which one claim waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Runtime, SingleFlight};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn::connect::Connector;
use crate::conn::connection::{Connection, idle_for};
use crate::error::Failure;

/// How many connections hold locks at most: one for each length of a lease, which is the connection's idle timeout.
const MAX_HOLDING: usize = 4;

/// The connections of a client.
pub(crate) struct Pool {
    pub(crate) connector: Arc<Connector>,
    /// By idle timeout. `None` once the client is closed.
    holding: Mutex<Option<HashMap<Duration, Arc<Holding>>>>,
    /// Connections that wait for no claim and hold nothing.
    unused: Arc<Mutex<Vec<Arc<Connection>>>>,
    /// One permit for each connection on which a claim may wait. First come, first served.
    waiting: Arc<Semaphore>,
}

#[derive(Default)]
struct Holding {
    connection: Mutex<Option<Arc<Connection>>>,
    opening: SingleFlight<Result<Arc<Connection>, Failure>>,
}

impl Holding {
    fn current(&self) -> Option<Arc<Connection>> {
        self.connection.lock().clone().filter(|connection| !connection.has_ended())
    }
}

/// A connection on which a claim waits or holds alone. Dropping it gives the connection back, if nothing is locked on it.
pub(crate) struct Exclusive {
    pub(crate) connection: Arc<Connection>,
    clean: bool,
    unused: Arc<Mutex<Vec<Arc<Connection>>>>,
    _permit: OwnedSemaphorePermit,
}

impl Exclusive {
    /// Notes that nothing is locked on the connection any more.
    pub(crate) fn set_clean(&mut self) {
        self.clean = true;
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        if self.clean && !self.connection.has_ended() {
            self.unused.lock().push(Arc::clone(&self.connection));
        } else {
            self.connection.end();
        }
    }
}

impl Pool {
    pub(crate) fn new(connector: Connector) -> Pool {
        let waiting = connector.config.connections.saturating_sub(MAX_HOLDING).max(1);
        Pool {
            connector: Arc::new(connector),
            holding: Mutex::new(Some(HashMap::new())),
            unused: Arc::default(),
            waiting: Arc::new(Semaphore::new(waiting)),
        }
    }

    /// Returns a connection that holds locks whose leases last `ttl`. Opens it if there is none.
    pub(crate) async fn holding(&self, ttl: Duration) -> Result<Arc<Connection>, Failure> {
        let ttl = idle_for(ttl);
        let (idle, holding) = {
            let mut known = self.holding.lock();
            let known = known.as_mut().ok_or_else(Failure::closed)?;
            let most = MAX_HOLDING.min(self.connector.config.connections - 1);
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
        let (connector, own) = (Arc::clone(&self.connector), Arc::clone(&holding));
        let opening = async move {
            // Another claim may have opened it meanwhile.
            if let Some(connection) = own.current() {
                return Ok(connection);
            }
            let connection = connector.connect(idle).await?;
            *own.connection.lock() = Some(Arc::clone(&connection));
            connector.runtime.spawn(keep_open(connector.runtime.clone(), Arc::downgrade(&connection)));
            Ok(connection)
        };
        holding.opening.join(&self.connector.runtime, opening).await.unwrap_or_else(|| Err(Failure::closed()))
    }

    /// Returns the right to a connection on which a claim can wait, if there is one.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.waiting).try_acquire_owned().ok()
    }

    /// Returns the right to a connection on which a claim can wait, first come, first served.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.waiting).acquire_owned().await.map_err(|_| Failure::closed())
    }

    /// Returns a connection on which a claim can wait. Runs on the client's own thread.
    pub(crate) async fn exclusive(
        &self,
        permit: OwnedSemaphorePermit,
        ttl: Duration,
    ) -> Result<Exclusive, Failure> {
        let idle = idle_for(ttl);
        let unused = loop {
            match self.unused.lock().pop() {
                Some(connection) if connection.has_ended() => {}
                other => break other,
            }
        };
        let connection = match unused {
            Some(connection) => {
                if connection.idle() != idle {
                    connection.set_idle(idle).await?;
                }
                connection
            }
            None => {
                let connection = self.connector.connect(idle).await?;
                let runtime = self.connector.runtime.clone();
                self.connector.runtime.spawn(end_unused(
                    runtime,
                    Arc::clone(&self.unused),
                    Arc::downgrade(&connection),
                ));
                connection
            }
        };
        Ok(Exclusive { connection, clean: false, unused: Arc::clone(&self.unused), _permit: permit })
    }

    /// Returns when a statement that is sent now takes too long: with the time in which a connection is opened.
    pub(crate) fn time_limit(&self) -> Moment {
        let config = &self.connector.config;
        self.connector.runtime.clock().now() + config.timeout + config.connect_timeout
    }

    /// Returns the error of a statement that took too long.
    pub(crate) fn timeout(&self) -> Failure {
        Failure::timeout(&self.connector.server)
    }

    /// Ends all connections that hold locks for many claims, and lets no claim wait any more.
    pub(crate) fn close(&self) {
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

/// Keeps a connection open that holds nothing: the next lock does not wait for a new one.
async fn keep_open(runtime: Runtime, connection: std::sync::Weak<Connection>) {
    let clock = runtime.clock();
    loop {
        let Some(idle) = connection.upgrade().map(|connection| connection.idle()) else { return };
        clock.sleep_until(clock.now() + idle / 3).await;
        let Some(connection) = connection.upgrade().filter(|connection| !connection.has_ended()) else {
            return;
        };
        let (sent, free) = connection.usage();
        if clock.is_stopped() {
            return;
        }
        if free && clock.now() >= sent + idle / 3 {
            // If it fails the server or the keep-alive ends the connection.
            let _ = connection.ping(idle).await;
        }
    }
}

/// Ends a connection that nobody has used for a third of its idle timeout.
async fn end_unused(
    runtime: Runtime,
    unused: Arc<Mutex<Vec<Arc<Connection>>>>,
    connection: std::sync::Weak<Connection>,
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
