//! Failed requests and what to do about them.

use std::error::Error as StdError;
use std::fmt;

use fencepost_core::{Effect, Error, ErrorKind, LaterFormat};
use tonic::{Code, Status};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "etcd";

/// A failed request.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// What its caller is told.
    pub(crate) error: Error,
    why: Why,
}

/// Failures on which the engine acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    LeaseNotFound,
    LeaseExists,
    TokenRefused,
    /// Another member may succeed.
    Member,
    NoSpace,
    Other,
}

impl Failed {
    /// Creates a failure of a request that has certainly had no effect.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Failed {
        Error::new(kind, message).into()
    }

    pub(crate) fn because(self, cause: impl fmt::Display) -> Failed {
        Failed { error: self.error.because(cause.to_string()), ..self }
    }

    fn why(self, why: Why) -> Failed {
        Failed { why, ..self }
    }

    fn transient(self) -> Failed {
        Failed { error: self.error.transient(true), ..self }
    }

    /// Adds advice to the message.
    pub(crate) fn advising(self, advice: &str) -> Failed {
        Failed { error: self.error.advising(advice), ..self }
    }

    /// Notes that the request may have had an effect.
    pub(crate) fn unknown(self) -> Failed {
        Failed { error: self.error.unknown(), ..self }
    }

    /// Returns whether the request may have had an effect.
    pub(crate) fn is_unknown(&self) -> bool {
        self.error.effect() == Effect::Unknown
    }

    /// Returns whether the lease of the request does not exist any more, nor its keys.
    pub(crate) fn is_lease_not_found(&self) -> bool {
        self.why == Why::LeaseNotFound
    }

    pub(crate) fn is_lease_exists(&self) -> bool {
        self.why == Why::LeaseExists
    }

    /// Returns whether the client has to log in again.
    pub(crate) fn is_token_refused(&self) -> bool {
        self.why == Why::TokenRefused
    }

    /// Returns whether the server has no space left and only deletes.
    pub(crate) fn is_no_space(&self) -> bool {
        self.why == Why::NoSpace
    }

    /// Returns whether another member may succeed.
    pub(crate) fn is_of_member(&self) -> bool {
        self.why == Why::Member
    }

    /// Returns the server's own words, if there are any.
    pub(crate) fn words(&self) -> String {
        self.error.source().map_or_else(|| self.error.to_string(), ToString::to_string)
    }

    /// Reads the status of a failed request.
    pub(crate) fn read(status: &Status, member: &str) -> Failed {
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
            return Failed::new(Configuration, message).because(why).why(Why::Member);
        }
        let failure = match status.code() {
            _ if is_not_tls(status) => Failed::not_tls(member),
            _ if is_unconnected(status) => Failed::unconnected(member),
            _ if says("requested lease not found") => Failed::lease_not_found(),
            _ if says("lease already exists") => {
                Failed::new(Internal, "the lease exists already").why(Why::LeaseExists)
            }
            // Some servers send the third text, because they do not translate it.
            _ if says("invalid auth token")
                || says("revision of auth store is old")
                || says("auth: revision in header is old") =>
            {
                Failed::token_refused(member)
            }
            _ if says("authentication failed") => {
                Failed::new(Denied, format!("{member} refuses this user and password; check them"))
            }
            _ if says("authentication is not enabled") => Failed::new(
                Configuration,
                format!("{member} has no users, because authentication is off; remove user and password from the URL"),
            ),
            _ if says("user name is empty") => {
                Failed::new(Denied, format!("{member} requires a user; write etcd://user@host?password_env=NAME"))
            }
            Code::PermissionDenied => Failed::new(
                Denied,
                format!("{member}: permission denied; grant the user read and write access to the key prefix, or set another prefix in the URL (prefix=)"),
            ),
            _ if says("database space exceeded") => Failed::new(
                Configuration,
                format!(
                    "{member} is out of space and refuses writes; compact and defragment it, then disarm its alarm (etcdctl alarm)"
                ),
            )
            .why(Why::NoSpace)
            .transient(),
            // Refused before the proposal reached the other members.
            _ if ["no leader", "raft proposal dropped", "not capable", "not ready"].iter().any(|part| says(part)) => {
                Failed::new(
                    Unreachable,
                    format!("{member} has no leader, because it reaches no majority of the members; start them, or check the network"),
                )
                .why(Why::Member)
            }
            Code::ResourceExhausted => {
                Failed::new(Unreachable, format!("{member} is overloaded; try again")).unknown()
            }
            Code::Unimplemented => Failed::new(
                Configuration,
                format!("{member} does not know this request; use etcd 3.4 or newer, without a proxy before it"),
            ),
            // A server that wants TLS, or a client certificate, closes the connection after it has accepted it.
            _ if says("operation was canceled") || says("broken pipe") => Failed::new(
                Unreachable,
                format!(
                    "{member} closed the connection; if it wants TLS, use etcds:, and if it wants a client certificate, set cert \
                     and key in the URL"
                ),
            )
            .why(Why::Member)
            .unknown(),
            // The first bytes of another protocol, read as the head of an HTTP/2 frame.
            _ if says("frame with invalid size") => Failed::new(
                Unreachable,
                format!("{member} does not speak etcd's protocol; check the port, and whether it wants TLS (etcds:)"),
            )
            .why(Why::Member)
            .unknown(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                Failed::new(Unreachable, format!("no reply from etcd at {member}; check that it is running, and the port"))
                    .why(Why::Member)
                    .unknown()
            }
            _ => Failed::new(Internal, format!("{member} refused a request")),
        };
        failure.because(text)
    }

    /// The request's time is over.
    pub(crate) fn timeout(member: &str) -> Failed {
        let message =
            format!("no reply in time from etcd at {member}; check that it is running, and the port");
        Failed::new(ErrorKind::Unreachable, message).why(Why::Member).unknown()
    }

    /// The server accepts connections, and its replies are not TLS.
    pub(crate) fn not_tls(member: &str) -> Failed {
        let message = format!(
            "{member} accepts connections but does not reply in TLS; check that it is running, and the port, or use etcd: instead of \
             etcds: for a server without TLS"
        );
        Failed::new(ErrorKind::Unreachable, message).why(Why::Member)
    }

    /// There is no connection, so nothing was sent.
    fn unconnected(member: &str) -> Failed {
        let message =
            format!("cannot connect to etcd at {member} (is it running, and does it require TLS: etcds:?)");
        Failed::new(ErrorKind::Unreachable, message).why(Why::Member)
    }

    /// The login's token is not valid any more.
    pub(crate) fn token_refused(member: &str) -> Failed {
        let message = format!(
            "{member} refuses each new login token; check whether something changes users and roles all the time"
        );
        Failed::new(ErrorKind::Denied, message).why(Why::TokenRefused).transient()
    }

    /// The renewal may be one of a deposed leader.
    pub(crate) fn leader_changed() -> Failed {
        Failed::new(
            ErrorKind::Unreachable,
            "the cluster has a new leader, so the lease must be renewed again",
        )
    }

    /// The lease does not exist any more, nor its keys.
    pub(crate) fn lease_not_found() -> Failed {
        Failed::new(ErrorKind::Lost, "the lease does not exist any more").why(Why::LeaseNotFound)
    }

    /// The key changed between each read and the write after it.
    pub(crate) fn contested() -> Failed {
        let message =
            "other programs write the lock's key all the time; check who has the secret of its lease";
        Failed::new(ErrorKind::Unreachable, message)
    }

    /// The time for the requests of one claim is over. They go on.
    pub(crate) fn unanswered() -> Failed {
        Failed::new(ErrorKind::Unreachable, "etcd has not answered in time").unknown()
    }

    /// The reply lacks a part.
    pub(crate) fn malformed() -> Failed {
        let message = "the reply lacks a part; remove the proxy before etcd, if there is one";
        Failed::new(ErrorKind::Internal, message).unknown()
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failed {
        Failed::new(ErrorKind::Closed, Error::CLOSED)
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

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error: error.on(ENGINE), why: Why::Other }
    }
}

impl From<LaterFormat> for Failed {
    fn from(later: LaterFormat) -> Failed {
        Failed::new(ErrorKind::Configuration, later.to_string())
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_an_error_with_advice() {
        let read = |code, text: &str| Failed::read(&Status::new(code, text), "h:1");
        assert!(read(Code::NotFound, "etcdserver: requested lease not found").is_lease_not_found());
        assert!(read(Code::FailedPrecondition, "etcdserver: lease already exists").is_lease_exists());
        for (code, text) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "auth: revision in header is old"),
        ] {
            let failed = read(code, text);
            assert!(failed.is_token_refused() && !failed.is_unknown(), "{text}");
            assert!(failed.error.is_transient(), "{text}");
        }
        let failed = read(Code::Unavailable, "etcdserver: no leader");
        assert!(failed.is_of_member() && !failed.is_unknown() && failed.error.is_transient());
        let failed = read(Code::Unavailable, "etcdserver: request timed out");
        assert!(failed.is_unknown() && failed.error.is_unreachable());
        let error = read(Code::PermissionDenied, "etcdserver: permission denied").error;
        assert!(error.is_denied() && !error.is_transient() && error.to_string().contains("h:1"));
        assert!(error.to_string().contains("prefix"), "{error}");
        let error = read(Code::Unknown, "connection error detected: frame with invalid size").error;
        assert!(error.is_unreachable() && error.to_string().contains("check the port"), "{error}");
    }
}
