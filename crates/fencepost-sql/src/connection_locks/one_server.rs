//! The one server that the connections of a client lead to.

use fencepost_core::ErrorKind;
use fencepost_core::sync::Mutex;

use crate::connection_locks::task::ConnectionEnd;
use crate::failure::Failure;

/// The open connections of a client, of which all lead to one server. Each server grants by itself, so a client with connections to two of
/// them would hold a lock twice. Once no connection to a server is open, and the holders there have been told, the next server may be
/// another one.
///
/// Connections on which no lock rests follow: they are opened at the server of the locks, keep no client there, and are not used any more once
/// the locks are at another one.
#[derive(Default)]
pub struct OneServer(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    locking: Vec<Open>,
    following: Vec<Open>,
}

/// An open connection.
struct Open {
    /// A text that differs between servers.
    identity: String,
    end: ConnectionEnd,
}

impl OneServer {
    /// Checks that no connection to another server than `identity` is open. `server`: the server as messages name it.
    ///
    /// # Errors
    /// One is open. Trying again later may help.
    pub fn check(&self, identity: &str, server: &str) -> Result<(), Failure> {
        check(&mut self.0.lock().locking, identity, server)
    }

    /// Adds a connection, which `end` belongs to. Those that follow to another server are not used any more.
    ///
    /// # Errors
    /// As [`OneServer::check`]. The connection must not be used.
    pub fn join(&self, identity: &str, server: &str, end: &ConnectionEnd) -> Result<(), Failure> {
        let mut open = self.0.lock();
        check(&mut open.locking, identity, server)?;
        open.locking.push(Open::new(identity, end));
        let left: Vec<_> = open.following.extract_if(.., |open| open.identity != identity).collect();
        drop(open);
        left.iter().for_each(|open| open.end.note());
        Ok(())
    }

    /// Adds a connection on which no lock rests, which `end` belongs to.
    ///
    /// # Errors
    /// As [`OneServer::check`]. The connection must not be used.
    pub fn follow(&self, identity: &str, server: &str, end: &ConnectionEnd) -> Result<(), Failure> {
        let mut open = self.0.lock();
        check(&mut open.locking, identity, server)?;
        open.following.retain(|open| !open.end.has_ended());
        open.following.push(Open::new(identity, end));
        Ok(())
    }

    /// Ends all connections to a server that has become read-only, and tells their holders. Another server may be the primary, which grants
    /// the same locks again, and this client may use it only when no connection to this one is open.
    pub fn leave(&self, identity: &str) {
        let open = self.0.lock();
        let all = open.locking.iter().chain(&open.following);
        let ends: Vec<_> =
            all.filter(|open| open.identity == identity).map(|open| open.end.clone()).collect();
        drop(open);
        ends.iter().for_each(ConnectionEnd::note);
    }
}

impl Open {
    fn new(identity: &str, end: &ConnectionEnd) -> Open {
        Open { identity: identity.to_owned(), end: end.clone() }
    }
}

fn check(open: &mut Vec<Open>, identity: &str, server: &str) -> Result<(), Failure> {
    open.retain(|open| !open.end.has_told());
    if open.iter().all(|open| open.identity == identity) {
        return Ok(());
    }
    let message = format!(
        "{server} is another server than that of the open connections, and each grants locks by itself; use the address of one \
         server, or try again when those connections have ended"
    );
    // It passes when those connections have ended, so it counts as a server that cannot be reached.
    Err(Failure { other_server: true, ..Failure::new(ErrorKind::Unreachable, message) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Another thread may open a connection to the next server at that moment.
    #[test]
    fn the_next_server_is_refused_until_the_holders_are_told() {
        let servers = Arc::new(OneServer::default());
        let (one, other) = (ConnectionEnd::default(), ConnectionEnd::default());
        servers.join("a", "host", &one).expect("it is the first");
        servers.join("a", "host", &other).expect("it is the same server");
        let own = Arc::clone(&servers);
        let telling = move || {
            let refused = own.check("b", "host").expect_err("a holder is being told");
            assert!(refused.transient && refused.kind == ErrorKind::Unreachable, "{refused}");
            assert!(refused.other_server && refused.to_string().contains("another server"), "{refused}");
        };
        one.then(telling.clone());
        other.then(telling);
        one.note();
        servers.check("b", "host").expect_err("one connection is open");
        servers.leave("a");
        assert!(other.has_ended());
        servers.join("b", "host", &ConnectionEnd::default()).expect("all have been told");
        servers.check("a", "host").expect_err("the client is at the next server");
    }
    /// A record beside a lock is read and written where the lock is held.
    #[test]
    fn a_connection_without_locks_follows_those_that_hold_them() {
        let servers = OneServer::default();
        let [lock, record] = [(); 2].map(|()| ConnectionEnd::default());
        servers.join("a", "host", &lock).expect("it is the first");
        servers
            .follow("b", "host", &ConnectionEnd::default())
            .expect_err("the locks are at the first server");
        servers.follow("a", "host", &record).expect("it is the same server");
        lock.note();
        assert!(!record.has_ended(), "no lock is held elsewhere");
        servers.join("b", "host", &ConnectionEnd::default()).expect("no lock is held at the first server");
        assert!(record.has_ended(), "the locks are at the next server");
        servers.follow("a", "host", &ConnectionEnd::default()).expect_err("the locks are at the next server");
    }
}
