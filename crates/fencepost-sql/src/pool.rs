//! Connections of which each is used by one caller at a time.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

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
    server: Arc<PoolServer<T>>,
    open: Mutex<Open<T>>,
}

/// The server of the connections of one or more pools.
struct PoolServer<T> {
    /// How often the server was left. Only connections of the present generation are kept.
    generation: AtomicU64,
    pools: Mutex<Vec<Weak<State<T>>>>,
}

struct Open<T> {
    /// Those that nobody uses, with their generations. `None` once the client is closed.
    idle: Option<Vec<(u64, T)>>,
    /// The generations of those in use.
    used: Vec<u64>,
}

/// The right to a connection.
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
    /// The generation of the connection: it may be opened while the server is left.
    generation: u64,
}

impl<T: Kept> Pool<T> {
    /// Makes an empty pool of at most `max` connections, which keeps at most `max_idle` of them open while nobody uses them.
    pub(crate) fn new(max: usize, max_idle: usize) -> Pool<T> {
        let server = PoolServer { generation: AtomicU64::new(0), pools: Mutex::new(Vec::new()) };
        Pool::with(max, max_idle, Arc::new(server))
    }

    /// Makes an empty pool of connections to the same server.
    pub(crate) fn beside(&self, max: usize, max_idle: usize) -> Pool<T> {
        Pool::with(max, max_idle, Arc::clone(&self.0.server))
    }

    fn with(max: usize, max_idle: usize, server: Arc<PoolServer<T>>) -> Pool<T> {
        let open = Mutex::new(Open { idle: Some(Vec::new()), used: Vec::new() });
        let state = Arc::new(State { permits: Arc::new(Semaphore::new(max)), max_idle, server, open });
        state.server.pools.lock().push(Arc::downgrade(&state));
        Pool(state)
    }

    /// Returns the right to a connection, first come, first served.
    pub(crate) async fn permit(&self) -> Result<Permit, Failure> {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| Failure::closed())?;
        Ok(Permit { _permit: permit, generation: self.0.generation() })
    }

    /// Returns the right to a connection, if there is one.
    pub(crate) fn try_permit(&self) -> Option<Permit> {
        let permit = Arc::clone(&self.0.permits).try_acquire_owned().ok()?;
        Some(Permit { _permit: permit, generation: self.0.generation() })
    }

    /// Takes a connection that nobody uses and that has not ended, for the owner of the permit.
    pub(crate) fn take(&self, permit: &mut Permit) -> Result<Option<T>, Failure> {
        let mut open = self.0.open.lock();
        let idle = open.idle.as_mut().ok_or_else(Failure::closed)?;
        let found = std::iter::from_fn(|| idle.pop()).find(|known| self.0.is_usable(known));
        Ok(found.map(|(generation, connection)| {
            // The server may have been left since the permit was given.
            permit.generation = generation;
            connection
        }))
    }

    /// Notes that a connection is opened now for the owner of the permit. It leads to the present server, unless that is left meanwhile.
    pub(crate) fn note_opening(&self, permit: &mut Permit) {
        permit.generation = self.0.generation();
    }

    /// Lends a connection. It comes back to this pool, also if it was taken from another one.
    pub(crate) fn lend(&self, connection: T, permit: Permit) -> Lent<T> {
        self.0.open.lock().used.push(permit.generation);
        Lent { connection: Some(connection), pool: self.clone(), clean: false, permit }
    }

    /// Returns whether one of the connections is open and leads to the present server.
    pub(crate) fn is_open(&self) -> bool {
        let open = self.0.open.lock();
        open.used.contains(&self.0.generation())
            || open.idle.iter().flatten().any(|known| self.0.is_usable(known))
    }

    /// Ends a connection if nobody uses it. Returns whether nobody did.
    pub(crate) fn end_idle(&self, is_meant: impl Fn(&T) -> bool) -> bool {
        let ended = {
            let mut open = self.0.open.lock();
            let idle = open.idle.as_mut();
            idle.and_then(|idle| {
                let position = idle.iter().position(|(_, connection)| is_meant(connection))?;
                Some(idle.swap_remove(position).1)
            })
        };
        ended.map(Kept::end).is_some()
    }

    /// Leaves the server to which the connections of this generation lead: ends those that nobody uses, also of the pools beside this one, and
    /// those in use or being opened when they come back. Returns `false` if the server was left before, because the connections that were
    /// opened since then lead to the next one.
    fn leave(&self, generation: u64) -> bool {
        let server = &self.0.server;
        if server.generation.compare_exchange(generation, generation + 1, SeqCst, SeqCst).is_err() {
            return false;
        }
        let pools: Vec<_> = server.pools.lock().iter().filter_map(Weak::upgrade).collect();
        for pool in pools {
            let left: Vec<_> = {
                let mut open = pool.open.lock();
                let idle =
                    open.idle.iter_mut().flat_map(|idle| idle.extract_if(.., |known| !pool.is_usable(known)));
                idle.collect()
            };
            left.into_iter().for_each(|(_, connection)| connection.end());
        }
        true
    }

    /// Ends the connections that nobody uses, and those in use when they come back.
    pub(crate) fn close(&self) {
        self.0.permits.close();
        let idle = self.0.open.lock().idle.take();
        idle.into_iter().flatten().for_each(|(_, connection)| connection.end());
    }
}

impl<T: Kept> State<T> {
    fn generation(&self) -> u64 {
        self.server.generation.load(SeqCst)
    }

    fn is_usable(&self, (generation, connection): &(u64, T)) -> bool {
        *generation == self.generation() && !connection.has_ended()
    }
}

/// A connection in use. Dropping it ends the connection, unless nothing is under way on it and nothing is locked.
pub struct Lent<T: Kept> {
    connection: Option<T>,
    pool: Pool<T>,
    clean: bool,
    permit: Permit,
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

    /// Leaves the server of this connection, which must not be used any more. Returns `false` if another connection to it has left before.
    pub(crate) fn leave(&self) -> bool {
        self.pool.leave(self.permit.generation)
    }
}

impl<T: Kept> Drop for Lent<T> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let state = &*self.pool.0;
        let mut open = state.open.lock();
        let generation = self.permit.generation;
        if let Some(position) = open.used.iter().position(|used| *used == generation) {
            open.used.swap_remove(position);
        }
        let known = (generation, connection);
        let kept = self.clean && state.is_usable(&known);
        match open.idle.as_mut().filter(|idle| kept && idle.len() < state.max_idle) {
            Some(idle) => idle.push(known),
            None => {
                drop(open);
                known.1.end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Connection(Arc<AtomicU64>);

    impl Kept for Connection {
        fn has_ended(&self) -> bool {
            false
        }

        fn end(self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// A connection may be opened before the server is left, and come into use after it.
    #[test]
    fn no_connection_to_a_server_that_was_left_is_kept() {
        let (pool, ended) = (Pool::new(3, 3), Arc::<AtomicU64>::default());
        let beside = pool.beside(1, 1);
        let lend = |pool: &Pool<Connection>| {
            let mut lent = pool.lend(Connection(Arc::clone(&ended)), pool.try_permit().expect("one is left"));
            lent.set_clean(true);
            lent
        };
        drop((lend(&pool), lend(&beside)));
        assert!(pool.is_open() && beside.is_open() && ended.load(SeqCst) == 0);
        let (used, opening) = (lend(&pool), pool.try_permit().expect("one is left"));
        let mut last = lend(&pool);
        assert!(last.leave());
        assert_eq!(ended.load(SeqCst), 2, "nobody used them");
        assert!(!beside.is_open() && !pool.is_open(), "those in use lead to the server that was left");
        let mut opened = pool.lend(Connection(Arc::clone(&ended)), opening);
        opened.set_clean(true);
        last.set_clean(true);
        drop((used, opened, last));
        assert_eq!(ended.load(SeqCst), 5, "none came back");
        drop(lend(&pool));
        assert!(pool.is_open(), "that one leads to the next server");
    }

    /// Statements may be under way on many connections to a server that has become read-only, and each of them fails.
    #[test]
    fn a_late_failure_of_an_old_connection_ends_none_to_the_next_server() {
        let (pool, ended) = (Pool::new(3, 3), Arc::<AtomicU64>::default());
        let open = |permit| {
            let mut lent = pool.lend(Connection(Arc::clone(&ended)), permit);
            lent.set_clean(true);
            lent
        };
        let [first, second] = [(); 2].map(|()| open(pool.try_permit().expect("one is left")));
        let mut waited = pool.try_permit().expect("one is left");
        assert!(first.leave());
        drop(first);
        drop(open(pool.try_permit().expect("one came back")));
        assert!(!second.leave(), "its server was left before");
        assert!(pool.is_open(), "the connection to the next server is kept");
        // The connection is younger than its permit.
        let connection = pool.take(&mut waited).expect("it is not closed").expect("it is kept");
        assert!(pool.lend(connection, waited).leave());
    }
}
