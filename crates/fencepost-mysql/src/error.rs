//! Failed statements and what to do about them.

use std::fmt::Display;

use fencepost_core::ErrorKind;
use fencepost_sql::Failure;

/// The server's error for a table that does not exist.
pub(crate) const NO_TABLE: u16 = 1146;

/// The server's error for a user without rights on the database.
pub(crate) const NO_ACCESS: u16 = 1044;

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

impl Unanswered {
    /// Returns whether the server accepts no writes of any session.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Unanswered::Refused { code: 1290 | 1836 | 3032, .. })
    }
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
        NO_ACCESS | 1142 | 1143 | 1227 | 1410 => failure(
            Denied,
            "denied a statement; grant the user SELECT, INSERT, UPDATE and DELETE on the table fencepost_token",
        ),
        1049 => failure(Configuration, "has no such database; create it or correct the URL"),
        NO_TABLE => failure(Configuration, "has no table fencepost_token any more; connect again to make it"),
        1040 | 1203 | 1226 => failure(
            Unreachable,
            "has no connection left; raise max_connections, or lower connections= in the URL",
        ),
        1290 | 1792 | 1836 | 3032 => read_only(server),
        // A deadlock of locks or rows, or a row that another session locks.
        1205 | 1213 | 3058 => {
            let failure = failure(Unreachable, "could not wait for a lock of others; try again");
            Failure { conflict: true, ..failure }
        }
        1053 | 1077 | 1079 | 1080 | 1927 | 2006 | 2013 | 4031 => {
            let failure = failure(Unreachable, "ended the connection; try again");
            Failure { closed: true, ..failure }
        }
        1317 | 1969 | 3024 => return interrupted(server).because(message),
        _ => failure(Internal, "refused a statement"),
    };
    failure.because(format_args!("{message} ({code})"))
}

/// The server accepts no writes. Another one may be the primary by now, so the connection is not used any more.
pub(crate) fn read_only(server: &str) -> Failure {
    let message = format!("{server} accepts no writes; name the primary in the URL");
    Failure { unusable: true, ..Failure::new(ErrorKind::Configuration, message).transient() }
}

/// The server interrupted the statement, because this client or somebody else asked for it.
pub(crate) fn interrupted(server: &str) -> Failure {
    let text = format!("{server} interrupted a statement; check who uses KILL QUERY, and limits of time");
    Failure { interrupted: true, ..Failure::new(ErrorKind::Unreachable, text) }
}

/// Makes the failure of a server with which there is no connection.
pub(crate) fn unconnected(server: &str, cause: impl Display) -> Failure {
    Failure::unconnected(server, "MySQL or MariaDB", cause)
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
