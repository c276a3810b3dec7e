//! Connections of which each is used by one caller at a time.

use std::sync::Arc;

use fencepost_core::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;

/// A connection that a pool keeps while nobody uses it.
pub trait Kept: Send + 'static {
    /// Returns whether the connection has ended.
    fn has_ended(&self) -> bool;

    /// Ends the connection.
    fn end(self);
}

/// Open connections of one kind. Clones share them.
pub(crate) struct Pool<T: Kept>(Arc<State<T>>);

impl<T: Kept> Clone for Pool<T> {
    fn clone(&self) -> Pool<T> {
        Pool(Arc::clone(&self.0))
    }
}

struct State<T> {
    permits: Arc<Semaphore>,
    max_idle: usize,
    open: Mutex<Open<T>>,
}

struct Open<T> {
    /// Those that nobody uses. `None` once the client is closed.
    idle: Option<Vec<T>>,
    used: usize,
}

impl<T: Kept> Pool<T> {
    /// Makes an empty pool of at most `max` connections, which keeps at most `max_idle` of them open while nobody uses them.
    pub(crate) fn new(max: usize, max_idle: usize) -> Pool<T> {
        let open = Mutex::new(Open { idle: Some(Vec::new()), used: 0 });
        Pool(Arc::new(State { permits: Arc::new(Semaphore::new(max)), max_idle, open }))
    }

    /// Returns the right to a connection, first come, first served.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| Failure::closed())
    }

    /// Returns the right to a connection, if there is one.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.permits).try_acquire_owned().ok()
    }

    /// Takes a connection that nobody uses and that has not ended.
    pub(crate) fn take(&self) -> Result<Option<T>, Failure> {
        let mut open = self.0.open.lock();
        let idle = open.idle.as_mut().ok_or_else(Failure::closed)?;
        Ok(std::iter::from_fn(|| idle.pop()).find(|connection| !connection.has_ended()))
    }

    /// Lends a connection. It comes back to this pool, also if it was taken from another one.
    pub(crate) fn lend(&self, connection: T, permit: OwnedSemaphorePermit) -> Lent<T> {
        self.0.open.lock().used += 1;
        Lent { connection: Some(connection), pool: self.clone(), clean: false, _permit: permit }
    }

    /// Returns whether one of the connections is open.
    pub(crate) fn is_open(&self) -> bool {
        let open = self.0.open.lock();
        open.used > 0 || open.idle.iter().flatten().any(|connection| !connection.has_ended())
    }

    /// Ends a connection if nobody uses it. Returns whether nobody did.
    pub(crate) fn end_idle(&self, is_meant: impl Fn(&T) -> bool) -> bool {
        let ended = {
            let mut open = self.0.open.lock();
            let idle = open.idle.as_mut();
            idle.and_then(|idle| Some(idle.swap_remove(idle.iter().position(is_meant)?)))
        };
        ended.map(Kept::end).is_some()
    }

    /// Ends all connections that nobody uses.
    pub(crate) fn end_all_idle(&self) {
        while self.end_idle(|_| true) {}
    }

    /// Ends the connections that nobody uses, and those in use when they come back.
    pub(crate) fn close(&self) {
        self.0.permits.close();
        let idle = self.0.open.lock().idle.take();
        idle.into_iter().flatten().for_each(Kept::end);
    }
}

/// A connection in use. Dropping it ends the connection, unless nothing is under way on it and nothing is locked.
pub struct Lent<T: Kept> {
    connection: Option<T>,
    pool: Pool<T>,
    clean: bool,
    _permit: OwnedSemaphorePermit,
}

impl<T: Kept> Lent<T> {
    /// Returns the connection.
    pub fn connection(&self) -> &T {
        self.connection.as_ref().expect("it is there until it is dropped")
    }

    /// Notes whether nothing is under way on the connection, and nothing is locked.
    pub fn set_clean(&mut self, clean: bool) {
        self.clean = clean;
    }
}

impl<T: Kept> Drop for Lent<T> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let State { open, max_idle, .. } = &*self.pool.0;
        let mut open = open.lock();
        open.used -= 1;
        let kept = self.clean && !connection.has_ended();
        match open.idle.as_mut().filter(|idle| kept && idle.len() < *max_idle) {
            Some(idle) => idle.push(connection),
            None => {
                drop(open);
                connection.end();
            }
        }
    }
}
