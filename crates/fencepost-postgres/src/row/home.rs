//! The connections of a client that no transaction has.

use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_core::sync::Mutex;
use fencepost_sql::{Failure, Results, Statement, on_own_thread};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::conn::connect::Connector;
use crate::row::database::explain;
use crate::table::connection::{Plain, open};
use crate::table::statement;

/// How many connections a client opens beside those that hold or wait.
const SHARED: usize = 2;

/// How many connections are kept open for later claims.
const MAX_IDLE: usize = 8;

/// The connections of a client that no transaction uses, and how many it may open.
pub(crate) struct Home {
    permits: Arc<Semaphore>,
    /// Of connections for notes, tokens and operators.
    shared: Semaphore,
    /// `None` once the client is closed.
    idle: Mutex<Option<Vec<Plain>>>,
}

impl Home {
    pub(crate) fn new(connector: &Arc<Connector>) -> Home {
        let permits = Arc::new(Semaphore::new(connector.config.server.connections));
        Home { permits, shared: Semaphore::new(SHARED), idle: Mutex::new(Some(Vec::new())) }
    }

    /// Runs statements in order, each in a transaction of its own.
    pub(crate) async fn run(
        &self,
        connector: &Arc<Connector>,
        statements: &[Statement],
    ) -> Result<Results, Failure> {
        self.with_shared(connector, async |plain| {
            let results = statement::run(&plain.client, statements, &connector.server).await;
            results.map_err(|failure| explain(failure, connector))
        })
        .await
    }

    /// Uses a connection that has no lock, within the time limit. First come, first served.
    pub(crate) async fn with_shared<T>(
        &self,
        connector: &Arc<Connector>,
        work: impl AsyncFnOnce(&Plain) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (clock, config) = (connector.runtime.clock(), &connector.config.server);
        let busy = || {
            let message = "the client's connections for tokens are busy; check the server's load";
            Failure::new(ErrorKind::Unreachable, message)
        };
        let until = clock.now() + config.timeout + config.connect_timeout;
        let permit = clock.within(until, self.shared.acquire()).await;
        let _permit = permit.ok_or_else(busy)?.map_err(|_| Failure::closed())?;
        let plain = self.connection(connector).await?;
        let result = clock.within(clock.now() + config.timeout, work(&plain)).await;
        let result = result.unwrap_or_else(|| Err(Failure::timeout(&connector.server)));
        // After an error of the server the connection is as good as before. One that ended is not used again.
        if result.as_ref().err().is_none_or(|failure| !failure.uncertain) {
            self.keep(plain);
        }
        result
    }

    /// Returns a connection that nothing uses, or opens one.
    pub(crate) async fn connection(&self, connector: &Arc<Connector>) -> Result<Plain, Failure> {
        if let Some(plain) = self.idle()? {
            return Ok(plain);
        }
        let own = Arc::clone(connector);
        on_own_thread(&connector.runtime, async move { open(&own).await }).await
    }

    /// Returns the right to one connection. `None`: all are in use.
    pub(crate) fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(Failure::closed()),
        }
    }

    /// Takes an open connection that nothing uses.
    fn idle(&self) -> Result<Option<Plain>, Failure> {
        let mut idle = self.idle.lock();
        let idle = idle.as_mut().ok_or_else(Failure::closed)?;
        while let Some(plain) = idle.pop() {
            if !plain.has_ended() {
                return Ok(Some(plain));
            }
        }
        Ok(None)
    }

    /// Keeps a connection for a later transaction, unless there are enough.
    pub(crate) fn keep(&self, plain: Plain) {
        if let Some(idle) = self.idle.lock().as_mut().filter(|idle| idle.len() < MAX_IDLE) {
            idle.push(plain);
        }
    }

    pub(crate) fn close(&self) {
        self.permits.close();
        self.shared.close();
        let idle = self.idle.lock().take();
        drop(idle);
    }
}
