//! The part of an engine: connections to its server, and the statements of one connection.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Claim, Error, Mode, Token, Want};

use crate::connection_locks::{Connection, ConnectionLocks, ConnectionTask};
use crate::database::Answer;
use crate::url::ServerUrl;

/// A server as one client uses it.
pub trait Server: Sized + Send + Sync + 'static {
    /// The engine's name in errors.
    const ENGINE: &'static str;

    /// The message for a grant that is to be detached: it cannot be, because it ends with its connection.
    const CANNOT_DETACH: &'static str;

    /// How long a claim that waits quietly pauses before it tries again: from once to twice this time.
    const POLL: Duration;

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

    /// Refuses what the engine cannot lock.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid).
    fn check(&self, _want: &Want) -> Result<(), Error> {
        Ok(())
    }

    /// Returns whether claims of this mode wait without a statement at the server.
    fn waits_quietly(&self, mode: Mode) -> bool;

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

    /// Is called after each renewal of the claims that a connection holds.
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
    /// The numbers of the claim's permits.
    pub permits: Vec<u32>,
}

/// A lock that was free.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Its token, which was drawn after the grant.
    pub token: Token,
    /// The numbers of its permits.
    pub permits: Vec<u32>,
}

/// The statements of one connection. The first poll of each sends it; dropped later, it takes effect all the same. They have no time limit
/// of their own.
pub trait Session: Send + Sync + 'static {
    /// The server's keys of a name.
    type Keys: Clone + Send + Sync + 'static;

    /// Takes a lock if it is free, and draws its token. `again`: another claim shares the name on this connection. `free`: the numbers of
    /// the permits that no claim of this client has.
    fn try_lock<'a>(
        &'a self,
        claim: &'a Claim,
        keys: &'a Self::Keys,
        again: bool,
        free: &'a [u32],
    ) -> Answer<'a, Option<Taken>>;

    /// Waits in the server's queue for a lock. `None`: the server has no queue for what is in the way, and nothing is locked.
    fn wait<'a>(&'a self, claim: &'a Claim, keys: &'a Self::Keys) -> Answer<'a, Option<Token>>;

    /// Confirms a lock that was waited for with this token, and returns its token. The idle timeout becomes `idle` and starts again.
    /// `None`: something is in the way for which the server has no queue, and nothing is locked.
    fn confirm<'a>(
        &'a self,
        claim: &'a Claim,
        keys: &'a Self::Keys,
        token: Token,
        idle: Duration,
    ) -> Answer<'a, Option<Token>>;

    /// Releases a lock. Returns whether the connection held it.
    fn unlock<'a>(&'a self, locked: &'a Locked<Self::Keys>) -> Answer<'a, bool>;

    /// Releases what an interrupted wait may have been granted.
    fn clean<'a>(&'a self, keys: &'a Self::Keys) -> Answer<'a, ()>;

    /// Returns whether `other` stands in the queue of a lock.
    fn is_queued<'a>(&'a self, other: &'a Self) -> Answer<'a, bool>;

    /// Sets the idle timeout, which starts again with each statement.
    fn set_idle(&self, idle: Duration) -> Answer<'_, ()>;

    /// Notes at the server that a claim of this client waits for a message about a release. `false`: try again.
    fn mark<'a>(&'a self, _keys: &'a Self::Keys) -> Answer<'a, bool> {
        Box::pin(async { Ok(true) })
    }

    /// Takes a [mark](Session::mark) back.
    fn unmark<'a>(&'a self, _keys: &'a Self::Keys) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
