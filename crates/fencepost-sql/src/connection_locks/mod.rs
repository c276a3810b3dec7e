//! Locks that a connection to the server holds: the server frees them when the connection ends. An engine gives a [`Server`], which opens
//! connections, and a [`Session`] with the statements of one connection.
//!
//! - One connection holds the uncontended locks of all claims whose leases have the same length, because the server ends a connection
//!   that is silent for so long. A client opens at most four of these.
//! - A server gives a connection a lock again that the connection has. So the client keeps a table of the names in use.
//! - A claim that is blocked waits in the server's queue on a connection of its own, and keeps that connection until its release. A
//!   connection that holds never waits: its ping would queue behind the wait.
//! - A claim that finds another one of its client waiting so waits for its turn, without a try, which would fail.
//! - After a wait, one more statement confirms the lock. The lease counts from the sending of that statement. A claim that sends it too
//!   late begins again: the server has ended its connection.
//! - While no connection is free to wait, the claim whose turn it is tries again after pauses: the connections may all hold other locks.

mod attempt;
mod backend;
mod connection;
mod connections;
mod held;
mod keys;
mod listed;
mod one_server;
mod place;
mod renewal;
mod server;
#[cfg(test)]
mod silent;
mod task;
mod turns;
mod wait;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backoff, Claim, Entry, How, Result, Runtime};

pub use backend::Operators;
pub use connection::Connection;
pub use connections::{Alone, LockConnections};
pub use held::Held;
pub use listed::{ListedClaim, ListedClaims};
pub use one_server::OneServer;
pub use server::{Locked, Server, Session};
pub use task::{ConnectionEnd, ConnectionTask};

use crate::connection_locks::keys::KeysInUse;
use crate::connection_locks::place::LockPlace;
use crate::connection_locks::turns::Turns;
use crate::failure::Failure;

/// The lease for which the first connection is opened: core's default.
const FIRST_TTL: Duration = Duration::from_secs(30);

/// How long a claim waits in the server's queue before its client asks whether it stands there. A claim that is granted earlier costs no
/// such statement, and the server mostly has read the statement that waits. Measured with 16 waiters in 4 processes: a third of all
/// handoffs were lost without this pause.
const QUEUE_CHECK_DELAY: Duration = Duration::from_millis(2);

/// The locks of one client. Its parts share it.
pub struct ConnectionLocks<S: Server> {
    /// Opens connections.
    pub server: Arc<S>,
    /// The connections.
    pub connections: LockConnections<S>,
    /// The client's clock and tasks.
    pub runtime: Runtime,
    /// The claims that wait or hold.
    pub listed: ListedClaims<S>,
    keys: KeysInUse,
    turns: Turns,
}

impl<S: Server> ConnectionLocks<S> {
    /// Connects, so that a server that does not accept this client is an error now.
    ///
    /// # Errors
    /// Those of the server's [`connect`](Server::connect).
    ///
    /// # Cancel safety
    /// May be dropped; the connection is closed.
    pub async fn open(server: Arc<S>, runtime: Runtime) -> Result<Arc<ConnectionLocks<S>>, Failure> {
        let (listed, keys, turns) = (ListedClaims::default(), KeysInUse::default(), Turns::default());
        let connections = LockConnections::new(Arc::clone(&server), runtime.clone());
        let locks = Arc::new(ConnectionLocks { server, connections, runtime, listed, keys, turns });
        locks.connection().await?;
        Ok(locks)
    }

    /// Returns a connection that holds locks, for statements that belong to no claim.
    ///
    /// # Errors
    /// Those of the server's [`connect`](Server::connect).
    ///
    /// # Cancel safety
    /// May be dropped; a connection that is being opened stays for later callers.
    pub async fn connection(&self) -> Result<Arc<Connection<S>>, Failure> {
        self.connections.holding(FIRST_TTL).await
    }

    /// Makes the entry of a claim. A detached lease does not exist.
    pub fn entry(self: &Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let place = match how {
            How::Enter => LockPlace::new(self, Arc::clone(&claim)),
            How::Attach => LockPlace::gone(self, Arc::clone(&claim)),
        };
        Entry::new(claim, how, place)
    }

    /// Sends a statement of which only the reply matters.
    ///
    /// # Errors
    /// Those of the statement.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn reach(&self) -> Result<(), Failure> {
        self.connection().await?.ping(FIRST_TTL).await
    }

    /// Learns after a ping of a connection what became of the claims that it holds, and releases the locks of those that are lost.
    async fn look_after(self: &Arc<Self>, connection: &Connection<S>) -> Result<(), Failure> {
        connection.note_look();
        // Others keep the connection alive, and the locks of lost claims with it. Their guards may be kept for long.
        self.listed.expired(connection).iter().for_each(|held| held.release_expired());
        S::renewed(self, connection).await
    }

    /// Returns when `waiting` stands in the queue of a lock. Asks again if that fails: another connection than that which waits may have
    /// ended.
    async fn await_queued(&self, waiting: &Connection<S>, ttl: Duration) {
        let mut backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(100));
        let clock = self.runtime.clock();
        clock.sleep_until(clock.now() + QUEUE_CHECK_DELAY).await;
        let ask = async || {
            let connection = self.connections.holding(ttl).await?;
            connection.run(|session| session.is_queued(waiting.session())).await
        };
        // The server may not have read the statement yet.
        while !matches!(ask().await, Ok(true)) {
            backoff.sleep(clock).await;
        }
    }

    /// Returns when `waiting` has not been seen in the queue for its lease: it was granted, and the reply does not come, or nobody
    /// answers. A server that hangs keeps its connections open. Calls `queued` when it is first seen.
    async fn until_unseen(&self, waiting: &Connection<S>, ttl: Duration, queued: impl FnOnce()) {
        let clock = self.runtime.clock();
        // Each look is a statement: they are rare also for short leases.
        let lease = waiting.idle().max(2 * self.server.url().timeout);
        let first = clock.within(clock.now() + lease, self.await_queued(waiting, ttl)).await;
        if first.is_none() {
            return;
        }
        queued();
        let mut seen = clock.now();
        while clock.now() < seen + lease {
            let asked = clock.now() + lease / 3;
            clock.sleep_until(asked).await;
            let look = async {
                let connection = self.connections.holding(ttl).await?;
                connection.run(|session| session.is_queued(waiting.session())).await
            };
            if matches!(look.await, Ok(true)) {
                seen = asked;
            }
        }
    }
}
