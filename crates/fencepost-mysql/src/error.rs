//! Failed statements and what to do about them.

use std::fmt;

use fencepost_core::{Error, ErrorKind};

/// The server's error for a table that does not exist.
pub(crate) const NO_TABLE: u16 = 1146;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "mysql";

/// Why a statement has no reply.
pub(crate) enum Unanswered {
    Refused {
        code: u16,
        message: String,
    },
    /// The connection ended.
    Ended,
}

/// A failed statement. Unlike [`Error`] it can be cloned, for all callers of one request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    transient: bool,
    message: String,
    cause: Option<String>,
    uncertain: bool,
    closed: bool,
    interrupted: bool,
}

impl Failure {
    /// Creates a failure of a statement that has certainly had no effect.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            transient: kind == ErrorKind::Unreachable,
            message: message.into(),
            cause: None,
            uncertain: false,
            closed: false,
            interrupted: false,
        }
    }

    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.cause = Some(cause.to_string());
        self
    }

    /// Notes that the statement may have had an effect.
    fn uncertain(mut self) -> Failure {
        self.uncertain = true;
        self
    }

    pub(crate) fn transient(mut self) -> Failure {
        self.transient = true;
        self
    }

    /// Returns whether the connection had ended. The server frees what it held.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether the server interrupted the statement.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Returns whether the user lacks a right.
    pub(crate) fn is_denied(&self) -> bool {
        self.kind == ErrorKind::Denied
    }

    /// Reads why a statement has no reply.
    pub(crate) fn read(error: Unanswered, server: &str) -> Failure {
        use ErrorKind::{Configuration, Denied, Internal, Unreachable};
        let Unanswered::Refused { code, message } = error else { return Failure::ended(server) };
        let failure = |kind, text: &str| Failure::new(kind, format!("{server} {text}"));
        let failure = match code {
            // Wrong password, not this host, an authentication that the server does not have, a locked or expired user.
            1045 | 1130 | 1698 | 1862 | 3118 | 4151 => failure(
                Denied,
                "refuses this user and password; check them, and from which hosts the user may connect",
            ),
            1044 | 1142 | 1143 | 1227 | 1410 => failure(
                Denied,
                "denied a statement; grant the user SELECT, INSERT, UPDATE and DELETE on the table fencepost_token",
            ),
            1049 => failure(Configuration, "has no such database; create it or correct the URL"),
            NO_TABLE => {
                failure(Configuration, "has no table fencepost_token any more; connect again to make it")
            }
            1040 | 1203 | 1226 => failure(
                Unreachable,
                "has no connection left; raise max_connections, or lower connections= in the URL",
            ),
            1290 | 1792 | 1836 | 3032 => {
                failure(Configuration, "accepts no writes; name the primary in the URL").transient()
            }
            // A deadlock of locks or rows, or a row that another session locks.
            1205 | 1213 | 3058 => failure(Unreachable, "could not wait for a lock of others; try again"),
            1053 | 1077 | 1079 | 1080 | 1927 | 2006 | 2013 | 4031 => {
                let failure = failure(Unreachable, "ended the connection; try again");
                Failure { closed: true, ..failure }
            }
            1317 | 1969 | 3024 => return Failure::interrupted(server).because(message),
            _ => failure(Internal, "refused a statement"),
        };
        failure.because(format_args!("{message} ({code})"))
    }

    /// The server interrupted the statement, because this client or somebody else asked for it.
    pub(crate) fn interrupted(server: &str) -> Failure {
        let text = format!("{server} interrupted a statement; check who uses KILL QUERY, and limits of time");
        Failure { interrupted: true, ..Failure::new(ErrorKind::Unreachable, text) }
    }

    /// There is no connection.
    pub(crate) fn unconnected(server: &str, cause: impl fmt::Display) -> Failure {
        let message = format!(
            "no connection to {server}; check that MySQL or MariaDB listens there, and whether it wants TLS (sslmode=verify-full)"
        );
        Failure::new(ErrorKind::Unreachable, message).because(cause)
    }

    /// The statement's time is over.
    pub(crate) fn timeout(server: &str) -> Failure {
        let message = format!(
            "{server} did not answer in time; try again, and check the network and the server's load"
        );
        Failure::new(ErrorKind::Unreachable, message).uncertain()
    }

    /// The connection had ended before the statement.
    pub(crate) fn ended(server: &str) -> Failure {
        let failure =
            Failure::new(ErrorKind::Unreachable, format!("the connection to {server} ended; try again"));
        Failure { closed: true, ..failure }
    }

    /// The session's number is another one than the server that greeted gave.
    pub(crate) fn pooled(server: &str) -> Failure {
        Failure::new(
            ErrorKind::Configuration,
            format!(
                "{server} is a proxy that pools connections, which gives a session's locks to other clients; connect to the \
                 server itself"
            ),
        )
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, Error::CLOSED)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let error = Error::new(failure.kind, failure.message).transient(failure.transient).on(ENGINE);
        let error = if failure.uncertain { error.unknown() } else { error };
        match failure.cause {
            Some(cause) => error.because(&*cause),
            None => error,
        }
    }
}
