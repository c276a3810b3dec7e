//! What can go wrong, and what to do about it.

use fencepost_core::{Error, ErrorKind};
use fencepost_tls::Trouble;
use zookeeper_client as zk;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "zookeeper";

/// A failure of a request, as an error for the caller.
pub(crate) fn failure(error: &zk::Error) -> Error {
    let (kind, message) = match error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            "ZooKeeper refuses access to a node; see to its ACL, or name the user who may: user:password@",
        ),
        zk::Error::AuthFailed => {
            (ErrorKind::Denied, "ZooKeeper refuses this user; see to the user and the password")
        }
        zk::Error::InvalidAcl => (
            ErrorKind::Denied,
            "ZooKeeper takes the nodes' ACL for none; does the server know the scheme digest?",
        ),
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed => {
            (ErrorKind::Unreachable, "the session with ZooKeeper has ended; a new one is being made")
        }
        zk::Error::NotReadOnly => {
            (ErrorKind::Unreachable, "the server has no quorum and takes no writes; see to the others")
        }
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::Configuration,
            "the lock's node is an ephemeral one of somebody else, and can have no children; use another name or path",
        ),
        zk::Error::NotEmpty => (
            ErrorKind::Configuration,
            "the holder's node has children, and cannot be deleted before them; see what they are",
        ),
        zk::Error::QuotaExceeded => {
            (ErrorKind::Configuration, "the nodes' quota is exceeded; raise it, or use another path")
        }
        zk::Error::Unimplemented => (
            ErrorKind::Configuration,
            "the server does not know this request; ZooKeeper 3.5.3 or later is needed",
        ),
        _ => (ErrorKind::Unreachable, "ZooKeeper did not answer; see to the servers and the network"),
    };
    let error_of = Error::new(kind, message).because(error.clone()).on(ENGINE);
    if is_unknown(error) { error_of.unknown() } else { error_of }
}

/// May the request have taken effect?
pub(crate) fn is_unknown(error: &zk::Error) -> bool {
    !matches!(
        error,
        zk::Error::NoNode
            | zk::Error::NoAuth
            | zk::Error::NodeExists
            | zk::Error::NotEmpty
            | zk::Error::InvalidAcl
            | zk::Error::BadVersion
            | zk::Error::BadArguments(_)
            | zk::Error::NoChildrenForEphemerals
            | zk::Error::QuotaExceeded
            | zk::Error::NotReadOnly
            | zk::Error::Throttled
            | zk::Error::Unimplemented
    )
}

/// Has the session ended, or was there never one?
pub(crate) fn is_over(error: &zk::Error) -> bool {
    matches!(
        error,
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed | zk::Error::AuthFailed
    )
}

/// No answer came in time.
pub(crate) fn silence() -> Error {
    Error::new(ErrorKind::Unreachable, "ZooKeeper did not answer in time; see to the servers and the network")
        .on(ENGINE)
        .unknown()
}

/// There is no connection, and the session may outlive that or not.
pub(crate) fn broken() -> Error {
    let message = "the connection to ZooKeeper broke; see to the servers and the network";
    Error::new(ErrorKind::Unreachable, message).on(ENGINE)
}

/// There is no session, and none came in time.
pub(crate) fn no_session(hosts: &[String], last: Option<&zk::Error>, trouble: Option<Trouble>) -> Error {
    if let Some(zk::Error::AuthFailed) = last {
        return failure(&zk::Error::AuthFailed);
    }
    if let Some(trouble) = trouble {
        return Error::from(trouble).on(ENGINE);
    }
    let message = format!(
        "no session could be had with {}; does ZooKeeper run there, and does it want TLS (zookeepers:)?",
        hosts.join(", ")
    );
    let error = Error::new(ErrorKind::Unreachable, message).on(ENGINE);
    match last {
        Some(last) => error.because(last.clone()),
        None => error,
    }
}

/// The client was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed; make a new one").on(ENGINE)
}
