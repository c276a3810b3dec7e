//! Errors: what failed, why, and what to do.

use fencepost_core::{Error, ErrorKind};
use fencepost_tls::TlsError;
use zookeeper_client as zk;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "zookeeper";

/// Returns the error for the caller of a request that failed.
pub(crate) fn failure(error: &zk::Error) -> Error {
    let (kind, message) = match error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            "ZooKeeper refuses access to a node; check its ACL, or name a user who has access: user:password@",
        ),
        zk::Error::AuthFailed => {
            (ErrorKind::Denied, "ZooKeeper refuses this user; check the user and the password")
        }
        zk::Error::InvalidAcl => (
            ErrorKind::Denied,
            "ZooKeeper refuses the nodes' ACL; check that the server knows the scheme digest",
        ),
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed => {
            (ErrorKind::Unreachable, "the session with ZooKeeper has ended; a new one is being made")
        }
        zk::Error::NotReadOnly => {
            (ErrorKind::Unreachable, "the server has no quorum and takes no writes; check the other servers")
        }
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::Configuration,
            "the lock's node is an ephemeral node of another client, and can have no children; use another name or path",
        ),
        zk::Error::NotEmpty => (
            ErrorKind::Configuration,
            "the holder's node has children, and cannot be deleted before them; look at them, then delete them",
        ),
        zk::Error::QuotaExceeded => {
            (ErrorKind::Configuration, "the nodes' quota is exceeded; raise it, or use another path")
        }
        zk::Error::Unimplemented => (
            ErrorKind::Configuration,
            "the server does not know this request; ZooKeeper 3.5.3 or later is needed",
        ),
        _ => (ErrorKind::Unreachable, "ZooKeeper did not answer; check the servers and the network"),
    };
    let error_of = Error::new(kind, message).because(error.clone()).on(ENGINE);
    if is_unknown(error) { error_of.unknown() } else { error_of }
}

/// Returns whether the request may have taken effect.
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

/// Returns whether the session has ended, or never began.
pub(crate) fn is_over(error: &zk::Error) -> bool {
    matches!(
        error,
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed | zk::Error::AuthFailed
    )
}

/// Returns the error for an answer that did not come in time.
pub(crate) fn timed_out() -> Error {
    Error::new(ErrorKind::Unreachable, "ZooKeeper did not answer in time; check the servers and the network")
        .on(ENGINE)
        .unknown()
}

/// Returns the error for a broken connection; the session may survive it.
pub(crate) fn disconnected() -> Error {
    let message = "the connection to ZooKeeper broke; check the servers and the network";
    Error::new(ErrorKind::Unreachable, message).on(ENGINE)
}

/// Returns the error for a session that could not be made in time.
pub(crate) fn no_session(hosts: &[String], last: Option<&zk::Error>, trouble: Option<TlsError>) -> Error {
    if let Some(zk::Error::AuthFailed) = last {
        return failure(&zk::Error::AuthFailed);
    }
    if let Some(trouble) = trouble {
        return Error::from(trouble).on(ENGINE);
    }
    let message = format!(
        "cannot connect to ZooKeeper at {} (is it running, and does it require TLS: zookeepers:?)",
        hosts.join(", ")
    );
    let error = Error::new(ErrorKind::Unreachable, message).on(ENGINE);
    match last {
        Some(last) => error.because(last.clone()),
        None => error,
    }
}

/// Returns the error for a client that was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, Error::CLOSED).on(ENGINE)
}
