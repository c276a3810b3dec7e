//! The one server that the connections of a client lead to.

use fencepost_core::ErrorKind;
use fencepost_core::sync::Mutex;

use crate::connection_locks::task::ConnectionEnd;
use crate::failure::Failure;

/// The open connections of a client, of which all lead to one server. Each server grants by itself, so a client with connections to two of
/// them would hold a lock twice. Once no connection to a server is open, and the holders there have been told, the next server may be
/// another one.
#[derive(Default)]
pub struct OneServer(Mutex<Vec<Open>>);

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
        check(&mut self.0.lock(), identity, server)
    }

    /// Adds a connection, which `end` belongs to.
    ///
    /// # Errors
    /// As [`OneServer::check`]. The connection must not be used.
    pub fn join(&self, identity: &str, server: &str, end: &ConnectionEnd) -> Result<(), Failure> {
        let mut open = self.0.lock();
        check(&mut open, identity, server)?;
        open.push(Open { identity: identity.to_owned(), end: end.clone() });
        Ok(())
    }

    /// Ends all connections to a server that has become read-only, and tells their holders. Another server may be the primary, which grants
    /// the same locks again, and this client may use it only when no connection to this one is open.
    pub fn leave(&self, identity: &str) {
        let open = self.0.lock();
        let ends: Vec<_> =
            open.iter().filter(|open| open.identity == identity).map(|open| open.end.clone()).collect();
        drop(open);
        ends.iter().for_each(ConnectionEnd::note);
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
}
