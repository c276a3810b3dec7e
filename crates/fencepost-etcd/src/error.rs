//! What can go wrong, and what to do about it.

use std::error::Error as StdError;
use std::fmt;

use fencepost_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "etcd";

/// Why something failed, to be told to any number of callers.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    transient: bool,
    message: String,
    cause: Option<String>,
    what: What,
    /// It has certainly not taken effect.
    pub(crate) sure: bool,
}

/// What the engine itself has to know of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// The lease is not at the server any more.
    LeaseGone,
    /// The lease is there already.
    LeaseExists,
    /// Our login has run out.
    Token,
    /// Another member may do better.
    Member,
    /// The server has no space left.
    Full,
    Other,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            transient: kind == ErrorKind::Unreachable,
            message: message.into(),
            cause: None,
            what: What::Other,
            sure: true,
        }
    }

    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.cause = Some(cause.to_string());
        self
    }

    fn of(mut self, what: What) -> Failure {
        self.what = what;
        self
    }

    /// Adds what else to do.
    pub(crate) fn advising(mut self, advice: &str) -> Failure {
        self.message = format!("{}; {advice}", self.message);
        self
    }

    /// It may have taken effect.
    pub(crate) fn unsure(mut self) -> Failure {
        self.sure = false;
        self
    }

    /// The lease that the request named is gone, and all that hung on it.
    pub(crate) fn is_lease_gone(&self) -> bool {
        self.what == What::LeaseGone
    }

    /// The lease was there already.
    pub(crate) fn is_lease_there(&self) -> bool {
        self.what == What::LeaseExists
    }

    /// We have to log in again.
    pub(crate) fn is_token(&self) -> bool {
        self.what == What::Token
    }

    /// The server has no space left, and only deletes.
    pub(crate) fn is_full(&self) -> bool {
        self.what == What::Full
    }

    /// Another member should be asked.
    pub(crate) fn is_of_member(&self) -> bool {
        self.what == What::Member
    }

    /// In the server's own words, if there are any.
    pub(crate) fn cause(&self) -> &str {
        self.cause.as_deref().unwrap_or(&self.message)
    }

    pub(crate) fn error(&self) -> Error {
        let error = Error::new(self.kind, &*self.message).transient(self.transient).on(ENGINE);
        let error = if self.sure { error } else { error.unknown() };
        match &self.cause {
            Some(cause) => error.because(&**cause),
            None => error,
        }
    }

    /// What a server, or the way to it, has answered.
    pub(crate) fn read(status: &Status, member: &str) -> Failure {
        let text = status.message();
        let said = |part: &str| text.contains(part);
        if let Some(why) = untrusted(status) {
            let message = if why.contains("received fatal alert") {
                format!(
                    "{member} takes no client without a certificate that it trusts; see to cert and key in the URL, or name yours \
                     with cert=/path and key=/path"
                )
            } else {
                format!(
                    "no TLS with {member}; see to ca in the URL, and to the name that the server has there"
                )
            };
            return Failure::new(ErrorKind::Configuration, message).because(why).of(What::Member);
        }
        let failure = match status.code() {
            _ if is_unconnected(status) && (said("tls handshake") || said("InvalidContentType")) => Failure::new(
                ErrorKind::Unreachable,
                format!(
                    "{member} takes connections and does not answer in TLS; look whether it speaks TLS at this port: a URL with \
                     etcds: is for TLS, one with etcd: goes without"
                ),
            )
            .of(What::Member),
            _ if is_unconnected(status) => Failure::unconnected(member),
            _ if said("requested lease not found") => Failure::lease_gone(),
            _ if said("lease already exists") => {
                Failure::new(ErrorKind::Internal, "the lease exists").of(What::LeaseExists)
            }
            // The last one is the text of a server that does not translate its own.
            _ if said("invalid auth token")
                || said("revision of auth store is old")
                || said("auth: revision in header is old") =>
            {
                Failure::forgotten(member)
            }
            _ if said("authentication failed") => {
                Failure::new(ErrorKind::Denied, format!("{member} does not know this user and password"))
            }
            _ if said("authentication is not enabled") => Failure::new(
                ErrorKind::Configuration,
                format!(
                    "{member} knows no users: authentication is off there; leave user and password out of the URL"
                ),
            ),
            _ if said("user name is empty") => Failure::new(
                ErrorKind::Denied,
                format!("{member} wants a user; write etcd://user@host?password_env=NAME"),
            ),
            Code::PermissionDenied => Failure::new(
                ErrorKind::Denied,
                format!(
                    "{member}: permission denied; grant the user read and write access to the key prefix, or name another prefix in \
                     the URL (prefix=)"
                ),
            ),
            _ if said("database space exceeded") => {
                let message = format!(
                    "{member} is out of space and takes no writes; compact, defragment and disarm its alarm (etcdctl alarm)"
                );
                let mut failure = Failure::new(ErrorKind::Configuration, message);
                failure.transient = true;
                failure.of(What::Full)
            }
            // Refused before it was proposed to the others.
            _ if said("no leader")
                || said("raft proposal dropped")
                || said("not capable")
                || said("not ready") =>
            {
                Failure::new(
                    ErrorKind::Unreachable,
                    format!(
                        "{member} finds no leader: too few members of the cluster are up or within its reach"
                    ),
                )
                .of(What::Member)
            }
            Code::ResourceExhausted => {
                let mut failure =
                    Failure::new(ErrorKind::Unreachable, format!("{member} has too much to do; try again"));
                failure.transient = true;
                failure.unsure()
            }
            Code::Unimplemented => Failure::new(
                ErrorKind::Configuration,
                format!(
                    "{member} does not know this request: etcd 3.4 or newer is needed, and no proxy before it"
                ),
            ),
            // By whoever speaks TLS and was not asked to, or wants to know us: it says so when we take ourselves for connected.
            _ if said("operation was canceled") || said("broken pipe") => Failure::new(
                ErrorKind::Unreachable,
                format!(
                    "{member} hung up; does it want TLS (etcds:), or to know its clients by certificates (cert and key in \
                     the URL), and does it accept ours?"
                ),
            )
            .of(What::Member)
            .unsure(),
            // The first bytes of another protocol, taken for the head of an HTTP/2 frame.
            _ if said("frame with invalid size") => Failure::new(
                ErrorKind::Unreachable,
                format!("{member} does not speak as etcd does; look at the port, and whether it wants TLS (etcds:)"),
            )
            .of(What::Member)
            .unsure(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal => {
                Failure::new(ErrorKind::Unreachable, format!("{member} did not answer; try again"))
                    .of(What::Member)
                    .unsure()
            }
            _ => Failure::new(ErrorKind::Internal, format!("{member} refused a request")),
        };
        failure.because(text)
    }

    /// No answer within the time that a request has.
    pub(crate) fn silence(member: &str) -> Failure {
        let message = format!("{member} did not answer in time; try again");
        Failure::new(ErrorKind::Unreachable, message).of(What::Member).unsure()
    }

    /// There is no connection, and nothing was sent.
    pub(crate) fn unconnected(member: &str) -> Failure {
        let message =
            format!("nothing answers at {member}; is etcd running there, and does it want TLS (etcds:)?");
        Failure::new(ErrorKind::Unreachable, message).of(What::Member)
    }

    /// The token of our login is not good any more.
    pub(crate) fn forgotten(member: &str) -> Failure {
        let message =
            format!("{member} refuses our login again and again; see who changes its users and roles");
        let mut failure = Failure::new(ErrorKind::Denied, message);
        failure.transient = true;
        failure.of(What::Token)
    }

    /// A renewal may be that of a leader who was none any more.
    pub(crate) fn elected() -> Failure {
        Failure::new(
            ErrorKind::Unreachable,
            "the cluster has a new leader; the lease has to be renewed again",
        )
    }

    /// The lease is gone, and all that hung on it.
    pub(crate) fn lease_gone() -> Failure {
        Failure::new(ErrorKind::Lost, "the lease is gone").of(What::LeaseGone)
    }

    /// The key was never as it had been read.
    pub(crate) fn contested() -> Failure {
        let message =
            "somebody else writes the lock's key again and again; see who has the secret of its lease";
        Failure::new(ErrorKind::Unreachable, message)
    }

    /// What came back is no answer.
    pub(crate) fn nonsense() -> Failure {
        Failure::new(
            ErrorKind::Internal,
            "the answer of etcd lacks what was asked for; is there a proxy before it?",
        )
        .unsure()
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, "the client was closed; make a new one")
    }
}

/// Was there no connection at all, so that nothing was sent?
fn is_unconnected(status: &Status) -> bool {
    causes(status).any(|error| error.is::<tonic::ConnectError>())
}

/// Why one side does not trust the other. A server that does not trust the client says so after it has taken the connection.
fn untrusted(status: &Status) -> Option<String> {
    let why = causes(status).last()?.to_string();
    let refused = why.contains("received fatal alert");
    (refused || is_unconnected(status) && why.contains("certificate")).then_some(why)
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let mut next = status.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
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
    fn what_a_server_says_tells_what_to_do() {
        let read = |code, text: &str| Failure::read(&Status::new(code, text), "h:1");
        assert!(read(Code::NotFound, "etcdserver: requested lease not found").is_lease_gone());
        assert!(read(Code::FailedPrecondition, "etcdserver: lease already exists").is_lease_there());
        for (code, text) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "auth: revision in header is old"),
        ] {
            let failure = read(code, text);
            assert!(failure.is_token() && failure.sure && failure.error().is_transient(), "{text}");
        }
        let failure = read(Code::Unavailable, "etcdserver: no leader");
        assert!(failure.is_of_member() && failure.sure && failure.error().is_transient());
        let failure = read(Code::Unavailable, "etcdserver: request timed out");
        assert!(!failure.sure && failure.error().is_unreachable());
        let error = read(Code::PermissionDenied, "etcdserver: permission denied").error();
        assert!(error.is_denied() && !error.is_transient() && error.to_string().contains("h:1"));
        assert!(error.to_string().contains("prefix"), "{error}");
        let error = read(Code::Unknown, "connection error detected: frame with invalid size").error();
        assert!(error.is_unreachable() && error.to_string().contains("look at the port"), "{error}");
    }
}
