//! Failed requests and what to do about them.

use std::error::Error as StdError;
use std::fmt;

use fencepost_core::{Error, ErrorKind, LaterFormat};
use tonic::{Code, Status};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "etcd";

/// A failed request. Unlike [`Error`] it can be cloned, for all callers of one request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    transient: bool,
    message: String,
    cause: Option<String>,
    reason: Reason,
    uncertain: bool,
}

/// Failures on which the engine acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    LeaseNotFound,
    LeaseExists,
    TokenRefused,
    /// Another member may succeed.
    Member,
    NoSpace,
    Other,
}

impl Failure {
    /// Creates a failure of a request that has certainly had no effect.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            transient: kind == ErrorKind::Unreachable,
            message: message.into(),
            cause: None,
            reason: Reason::Other,
            uncertain: false,
        }
    }

    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.cause = Some(cause.to_string());
        self
    }

    fn reason(mut self, reason: Reason) -> Failure {
        self.reason = reason;
        self
    }

    fn transient(mut self) -> Failure {
        self.transient = true;
        self
    }

    /// Adds advice to the message.
    pub(crate) fn advising(mut self, advice: &str) -> Failure {
        self.message = format!("{}; {advice}", self.message);
        self
    }

    /// Notes that the request may have had an effect.
    pub(crate) fn uncertain(mut self) -> Failure {
        self.uncertain = true;
        self
    }

    /// Returns whether the request may have had an effect.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// Returns whether the lease of the request does not exist any more, nor its keys.
    pub(crate) fn is_lease_not_found(&self) -> bool {
        self.reason == Reason::LeaseNotFound
    }

    pub(crate) fn is_lease_exists(&self) -> bool {
        self.reason == Reason::LeaseExists
    }

    /// Returns whether the client has to log in again.
    pub(crate) fn is_token_refused(&self) -> bool {
        self.reason == Reason::TokenRefused
    }

    /// Returns whether the server has no space left and only deletes.
    pub(crate) fn is_no_space(&self) -> bool {
        self.reason == Reason::NoSpace
    }

    /// Returns whether another member may succeed.
    pub(crate) fn is_of_member(&self) -> bool {
        self.reason == Reason::Member
    }

    /// Returns the server's own words, if there are any.
    pub(crate) fn cause(&self) -> &str {
        self.cause.as_deref().unwrap_or(&self.message)
    }

    pub(crate) fn error(&self) -> Error {
        let error = Error::new(self.kind, &*self.message).transient(self.transient).on(ENGINE);
        let error = if self.uncertain { error.unknown() } else { error };
        match &self.cause {
            Some(cause) => error.because(&**cause),
            None => error,
        }
    }

    /// Reads the status of a failed request.
    pub(crate) fn read(status: &Status, member: &str) -> Failure {
        use ErrorKind::{Configuration, Denied, Internal, Unreachable};
        let text = status.message();
        let says = |part: &str| text.contains(part);
        if let Some(why) = untrusted(status) {
            let message = if why.contains("received fatal alert") {
                format!(
                    "{member} refuses the client's certificate, or wants one; check cert and key in the URL, or add them with \
                     cert=/path and key=/path"
                )
            } else {
                format!(
                    "no TLS connection to {member}; check ca in the URL and the names in the server's certificate"
                )
            };
            return Failure::new(Configuration, message).because(why).reason(Reason::Member);
        }
        let failure = match status.code() {
            _ if is_not_tls(status) => Failure::not_tls(member),
            _ if is_unconnected(status) => Failure::unconnected(member),
            _ if says("requested lease not found") => Failure::lease_not_found(),
            _ if says("lease already exists") => {
                Failure::new(Internal, "the lease exists already").reason(Reason::LeaseExists)
            }
            // Some servers send the third text, because they do not translate it.
            _ if says("invalid auth token")
                || says("revision of auth store is old")
                || says("auth: revision in header is old") =>
            {
                Failure::token_refused(member)
            }
            _ if says("authentication failed") => {
                Failure::new(Denied, format!("{member} refuses this user and password; check them"))
            }
            _ if says("authentication is not enabled") => Failure::new(
                Configuration,
                format!("{member} has no users, because authentication is off; remove user and password from the URL"),
            ),
            _ if says("user name is empty") => {
                Failure::new(Denied, format!("{member} requires a user; write etcd://user@host?password_env=NAME"))
            }
            Code::PermissionDenied => Failure::new(
                Denied,
                format!("{member}: permission denied; grant the user read and write access to the key prefix, or set another prefix in the URL (prefix=)"),
            ),
            _ if says("database space exceeded") => Failure::new(
                Configuration,
                format!(
                    "{member} is out of space and refuses writes; compact and defragment it, then disarm its alarm (etcdctl alarm)"
                ),
            )
            .reason(Reason::NoSpace)
            .transient(),
            // Refused before the proposal reached the other members.
            _ if ["no leader", "raft proposal dropped", "not capable", "not ready"].iter().any(|part| says(part)) => {
                Failure::new(
                    Unreachable,
                    format!("{member} has no leader, because it reaches no majority of the members; start them, or check the network"),
                )
                .reason(Reason::Member)
            }
            Code::ResourceExhausted => {
                Failure::new(Unreachable, format!("{member} is overloaded; try again")).uncertain()
            }
            Code::Unimplemented => Failure::new(
                Configuration,
                format!("{member} does not know this request; use etcd 3.4 or newer, without a proxy before it"),
            ),
            // A server that wants TLS, or a client certificate, closes the connection after it has accepted it.
            _ if says("operation was canceled") || says("broken pipe") => Failure::new(
                Unreachable,
                format!(
                    "{member} closed the connection; if it wants TLS, use etcds:, and if it wants a client certificate, set cert \
                     and key in the URL"
                ),
            )
            .reason(Reason::Member)
            .uncertain(),
            // The first bytes of another protocol, read as the head of an HTTP/2 frame.
            _ if says("frame with invalid size") => Failure::new(
                Unreachable,
                format!("{member} does not speak etcd's protocol; check the port, and whether it wants TLS (etcds:)"),
            )
            .reason(Reason::Member)
            .uncertain(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                Failure::new(Unreachable, format!("no reply from etcd at {member}; check that it is running, and the port"))
                    .reason(Reason::Member)
                    .uncertain()
            }
            _ => Failure::new(Internal, format!("{member} refused a request")),
        };
        failure.because(text)
    }

    /// The request's time is over.
    pub(crate) fn timeout(member: &str) -> Failure {
        let message =
            format!("no reply in time from etcd at {member}; check that it is running, and the port");
        Failure::new(ErrorKind::Unreachable, message).reason(Reason::Member).uncertain()
    }

    /// The server accepts connections, and its replies are not TLS.
    pub(crate) fn not_tls(member: &str) -> Failure {
        let message = format!(
            "{member} accepts connections but does not reply in TLS; check that it is running, and the port, or use etcd: instead of \
             etcds: for a server without TLS"
        );
        Failure::new(ErrorKind::Unreachable, message).reason(Reason::Member)
    }

    /// There is no connection, so nothing was sent.
    fn unconnected(member: &str) -> Failure {
        let message =
            format!("cannot connect to etcd at {member} (is it running, and does it require TLS: etcds:?)");
        Failure::new(ErrorKind::Unreachable, message).reason(Reason::Member)
    }

    /// The login's token is not valid any more.
    pub(crate) fn token_refused(member: &str) -> Failure {
        let message = format!(
            "{member} refuses each new login token; check whether something changes users and roles all the time"
        );
        Failure::new(ErrorKind::Denied, message).reason(Reason::TokenRefused).transient()
    }

    /// The renewal may be one of a deposed leader.
    pub(crate) fn leader_changed() -> Failure {
        Failure::new(
            ErrorKind::Unreachable,
            "the cluster has a new leader, so the lease must be renewed again",
        )
    }

    /// The lease does not exist any more, nor its keys.
    pub(crate) fn lease_not_found() -> Failure {
        Failure::new(ErrorKind::Lost, "the lease does not exist any more").reason(Reason::LeaseNotFound)
    }

    /// The key changed between each read and the write after it.
    pub(crate) fn contested() -> Failure {
        let message =
            "other programs write the lock's key all the time; check who has the secret of its lease";
        Failure::new(ErrorKind::Unreachable, message)
    }

    /// The reply lacks a part.
    pub(crate) fn malformed() -> Failure {
        let message = "the reply lacks a part; remove the proxy before etcd, if there is one";
        Failure::new(ErrorKind::Internal, message).uncertain()
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, Error::CLOSED)
    }
}

/// The server's reply was not TLS.
#[cfg(feature = "tls")]
#[derive(Debug)]
pub(crate) struct NotTls(pub(crate) std::io::Error);

#[cfg(feature = "tls")]
impl fmt::Display for NotTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(feature = "tls")]
impl StdError for NotTls {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

/// Returns whether there was no connection, so that nothing was sent.
fn is_unconnected(status: &Status) -> bool {
    causes(status).any(|error| error.is::<tonic::ConnectError>())
}

#[cfg(feature = "tls")]
fn is_not_tls(status: &Status) -> bool {
    causes(status).any(|error| error.is::<NotTls>())
}

#[cfg(not(feature = "tls"))]
fn is_not_tls(_: &Status) -> bool {
    false
}

/// Returns why one side does not trust the other. A server that does not trust the client says so after it has accepted the connection.
fn untrusted(status: &Status) -> Option<String> {
    let why = causes(status).last()?.to_string();
    let refused = why.contains("received fatal alert");
    (refused || is_unconnected(status) && why.contains("certificate")).then_some(why)
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(status.source(), |error: &&'_ (dyn StdError + 'static)| (*error).source())
}

impl From<LaterFormat> for Failure {
    fn from(later: LaterFormat) -> Failure {
        Failure::new(ErrorKind::Configuration, later.to_string())
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_an_error_with_advice() {
        let read = |code, text: &str| Failure::read(&Status::new(code, text), "h:1");
        assert!(read(Code::NotFound, "etcdserver: requested lease not found").is_lease_not_found());
        assert!(read(Code::FailedPrecondition, "etcdserver: lease already exists").is_lease_exists());
        for (code, text) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "auth: revision in header is old"),
        ] {
            let failure = read(code, text);
            assert!(failure.is_token_refused() && !failure.is_uncertain(), "{text}");
            assert!(failure.error().is_transient(), "{text}");
        }
        let failure = read(Code::Unavailable, "etcdserver: no leader");
        assert!(failure.is_of_member() && !failure.is_uncertain() && failure.error().is_transient());
        let failure = read(Code::Unavailable, "etcdserver: request timed out");
        assert!(failure.is_uncertain() && failure.error().is_unreachable());
        let error = read(Code::PermissionDenied, "etcdserver: permission denied").error();
        assert!(error.is_denied() && !error.is_transient() && error.to_string().contains("h:1"));
        assert!(error.to_string().contains("prefix"), "{error}");
        let error = read(Code::Unknown, "connection error detected: frame with invalid size").error();
        assert!(error.is_unreachable() && error.to_string().contains("check the port"), "{error}");
    }
}
