//! Failed statements and what to do about them.

use std::error::Error as StdError;
use std::fmt;

use fencepost_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "postgres";

/// A failed statement. Unlike [`Error`] it can be cloned, for all callers of one request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    transient: bool,
    message: String,
    cause: Option<String>,
    uncertain: bool,
    closed: bool,
    cancelled: bool,
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
            cancelled: false,
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

    fn transient(mut self) -> Failure {
        self.transient = true;
        self
    }

    /// Returns whether the connection had ended. The server frees what it held.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether the server cancelled the statement because this client asked for it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Reads the error of a failed statement or connection.
    pub(crate) fn read(error: &tokio_postgres::Error, server: &str) -> Failure {
        use ErrorKind::{Configuration, Denied, Internal, Unreachable};
        let Some(said) = error.as_db_error() else {
            let failure = Failure::unconnected(server, last_cause(error));
            return Failure { closed: error.is_closed(), ..failure };
        };
        let failure = match said.code() {
            &SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Failure::new(
                Denied,
                format!("{server} refuses this user and password; check them, and pg_hba.conf of the server"),
            ),
            &SqlState::INVALID_CATALOG_NAME => Failure::new(
                Configuration,
                format!("{server} has no such database; create it or correct the URL"),
            ),
            &SqlState::INSUFFICIENT_PRIVILEGE => Failure::new(
                Denied,
                format!(
                    "{server}: permission denied; grant the user the rights that `fencepost schema` names in its comments"
                ),
            ),
            &SqlState::TOO_MANY_CONNECTIONS => Failure::new(
                Unreachable,
                format!(
                    "{server} has no connection left; raise max_connections, or lower connections= in the URL"
                ),
            ),
            &SqlState::CANNOT_CONNECT_NOW => {
                Failure::new(Unreachable, format!("{server} is starting or stopping; try again"))
            }
            &SqlState::READ_ONLY_SQL_TRANSACTION => Failure::new(
                Configuration,
                format!(
                    "{server} accepts no writes; connect to the primary, and check default_transaction_read_only"
                ),
            ),
            &SqlState::OUT_OF_MEMORY => Failure::new(
                Configuration,
                format!("{server} has no room for another lock; raise max_locks_per_transaction"),
            )
            .transient(),
            &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN | &SqlState::IDLE_SESSION_TIMEOUT => {
                let failure = Failure::new(Unreachable, format!("{server} ended the connection; try again"));
                Failure { closed: true, ..failure }
            }
            &SqlState::QUERY_CANCELED => {
                let message =
                    format!("{server} cancelled a statement; check statement_timeout, and who cancels");
                Failure { cancelled: true, ..Failure::new(Unreachable, message) }
            }
            code if code.code().starts_with("08") => Failure::new(
                Unreachable,
                format!("{server} did not answer as PostgreSQL does; check the port"),
            ),
            _ => Failure::new(Internal, format!("{server} refused a statement")),
        };
        failure.because(format_args!("{} ({})", said.message(), said.code().code()))
    }

    /// The server accepts no writes.
    pub(crate) fn standby(server: &str) -> Failure {
        let message = format!("{server} is a standby, which accepts no writes; name the primary in the URL");
        Failure::new(ErrorKind::Configuration, message)
    }

    /// There is no connection.
    pub(crate) fn unconnected(server: &str, cause: impl fmt::Display) -> Failure {
        let message = format!(
            "no connection to {server}; check that PostgreSQL listens there, and whether it wants TLS (sslmode=verify-full)"
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

    /// Another backend answered than the one of the connection.
    pub(crate) fn pooled(server: &str) -> Failure {
        Failure::new(
            ErrorKind::Configuration,
            format!(
                "{server} is a pooler in transaction mode, which gives a session's locks to other clients; connect to the \
                 server itself or to a pool in session mode, or use mode=table"
            ),
        )
    }

    /// The client was closed.
    pub(crate) fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, Error::CLOSED)
    }
}

impl Failure {
    /// Makes the lease table's failure of it.
    pub(crate) fn for_table(self) -> fencepost_sql::Failure {
        let mut failure = fencepost_sql::Failure::new(self.kind, self.message);
        (failure.cause, failure.transient, failure.uncertain) = (self.cause, self.transient, self.uncertain);
        failure
    }
}

/// Returns the last cause of an error that the server did not send: the driver's own words say less.
fn last_cause(error: &tokio_postgres::Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&(dyn StdError + 'static)| (*error).source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
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
