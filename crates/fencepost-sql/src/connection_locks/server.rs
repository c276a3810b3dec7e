//! The part of an engine: connections to its server, and the statements of one connection.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Mode, Token, Want};

use crate::connection_locks::{Connection, ConnectionLocks, ConnectionTask};
use crate::database::Answer;
use crate::url::ServerUrl;

/// A server as one client uses it.
pub trait Server: Sized + Send + Sync + 'static {
    /// The engine's name in errors.
    const ENGINE: &'static str;

    /// Why no grant can be detached: it ends with its connection.
    const CANNOT_DETACH: &'static str;

    /// A connection.
    type Session: Session;

    /// Returns the URL's contents.
    fn url(&self) -> &ServerUrl;

    /// Returns the servers as messages name them.
    fn name(&self) -> &str;

    /// Returns the idle timeout for leases of `ttl`: some servers count whole seconds.
    fn idle_for(ttl: Duration) -> Duration {
        ttl
    }

    /// Returns the server's keys of a name.
    fn keys(&self, want: &Want) -> <Self::Session as Session>::Keys;

    /// Opens a connection that the server ends after `idle` without a statement. `holds`: it holds locks for many claims. Runs on the
    /// client's own thread.
    fn connect(self: &Arc<Self>, idle: Duration, holds: bool) -> Answer<'_, (Self::Session, ConnectionTask)>;

    /// Ends the statement that `waiting` runs. It may arrive late, so the connection is used again only if the statement says that it was
    /// interrupted.
    fn interrupt<'a>(
        locks: &'a ConnectionLocks<Self>,
        waiting: &'a Connection<Self>,
        ttl: Duration,
    ) -> Answer<'a, ()>;

    /// Is called when a claim holds.
    fn granted(
        _locks: &Arc<ConnectionLocks<Self>>,
        _claim: &Claim,
        _keys: &<Self::Session as Session>::Keys,
    ) {
    }

    /// Is called after each ping of a connection for the claims that it holds.
    fn renewed<'a>(
        _locks: &'a Arc<ConnectionLocks<Self>>,
        _connection: &'a Connection<Self>,
    ) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A lock that a connection has for a claim.
#[derive(Clone, Debug)]
pub struct Locked<K> {
    /// The server's keys of the name.
    pub keys: K,
    /// How the name is locked.
    pub mode: Mode,
}

/// The statements of one connection. The first poll of each sends it; dropped later, it takes effect all the same. They have no time limit
/// of their own.
pub trait Session: Send + Sync + 'static {
    /// The server's keys of a name.
    type Keys: Clone + Send + Sync + 'static;

    /// Takes a lock if it is free, and draws its token. `reused`: another claim has the name on this connection already.
    fn try_lock<'a>(
        &'a self,
        claim: &'a Claim,
        keys: &'a Self::Keys,
        reused: bool,
    ) -> Answer<'a, Option<Token>>;

    /// Waits in the server's queue for a lock.
    fn wait<'a>(&'a self, claim: &'a Claim, keys: &'a Self::Keys) -> Answer<'a, Token>;

    /// Confirms a lock that was waited for with this token, and returns its token. The idle timeout becomes `idle` and starts again.
    fn confirm<'a>(
        &'a self,
        claim: &'a Claim,
        keys: &'a Self::Keys,
        token: Token,
        idle: Duration,
    ) -> Answer<'a, Token>;

    /// Releases a lock. Returns whether the connection held it.
    fn unlock<'a>(&'a self, locked: &'a Locked<Self::Keys>) -> Answer<'a, bool>;

    /// Releases what an interrupted wait may have been granted.
    fn clean<'a>(&'a self, keys: &'a Self::Keys) -> Answer<'a, ()>;

    /// Returns whether `other` stands in the queue of a lock.
    fn is_queued<'a>(&'a self, other: &'a Self) -> Answer<'a, bool>;

    /// Sets the idle timeout, which starts again with each statement.
    fn set_idle(&self, idle: Duration) -> Answer<'_, ()>;
}
