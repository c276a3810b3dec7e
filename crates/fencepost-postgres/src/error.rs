//! Failed statements and what to do about them.

use std::error::Error as StdError;
use std::fmt::Display;

use fencepost_core::ErrorKind;
use fencepost_sql::Failure;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "postgres";

/// The code of PostgreSQL 17 for a transaction that lasted for longer than `transaction_timeout`. The driver has no name for it.
const TRANSACTION_TIMEOUT: &str = "25P04";

/// Reads the error of a failed statement or connection.
pub(crate) fn read(error: &tokio_postgres::Error, server: &str) -> Failure {
    use ErrorKind::{Configuration, Denied, Internal, Unreachable};
    let Some(said) = error.as_db_error() else {
        let cause = last_cause(error);
        // The driver tells these by their text alone. A later try changes nothing.
        return match &*cause {
            "password missing" => Failure::new(
                Denied,
                format!(
                    "{server} asks for a password, and the URL has none; add password_file=/path or password_env=NAME"
                ),
            ),
            "server does not support TLS" => Failure::new(
                Configuration,
                format!(
                    "{server} does not offer TLS; turn on ssl in postgresql.conf, or leave sslmode out of the URL"
                ),
            ),
            _ => Failure { closed: error.is_closed(), ..unconnected(server, cause) },
        };
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
        &SqlState::INVALID_SCHEMA_NAME => Failure::new(
            Configuration,
            format!(
                "{server} has no schema for the tables; set search_path of this user, for example by ALTER ROLE name SET search_path = public"
            ),
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
        &SqlState::READ_ONLY_SQL_TRANSACTION => read_only(server),
        &SqlState::OUT_OF_MEMORY => Failure::new(
            Configuration,
            format!("{server} has no room for another lock; raise max_locks_per_transaction"),
        )
        .transient(),
        &SqlState::LOCK_NOT_AVAILABLE => Failure::new(
            Internal,
            format!(
                "{server}: another session has locked what a statement needs, as LOCK TABLE and ALTER TABLE do; try again when it has \
                 ended"
            ),
        )
        .transient(),
        &SqlState::ADMIN_SHUTDOWN
        | &SqlState::CRASH_SHUTDOWN
        | &SqlState::IDLE_SESSION_TIMEOUT
        | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            Failure::new(Unreachable, format!("{server} ended the connection; try again"))
        }
        &SqlState::QUERY_CANCELED => {
            let message = format!("{server} cancelled a statement; check statement_timeout, and who cancels");
            Failure { interrupted: true, ..Failure::new(Unreachable, message) }
        }
        code if code.code() == TRANSACTION_TIMEOUT => {
            let message =
                format!("{server} ended a transaction that took too long; check transaction_timeout");
            Failure::new(Unreachable, message)
        }
        code if is_of_connection(code) => Failure::new(
            Unreachable,
            format!(
                "{server} refused or ended the connection, as a pooler does whose server fails or whose time limit is reached; try \
                 again, and check the log and the time limits of the pooler"
            ),
        ),
        _ => Failure::new(Internal, format!("{server} refused a statement")),
    };
    let failure = Failure { closed: ends_connection(said), ..failure };
    failure.because(format_args!("{} ({})", said.message(), said.code().code()))
}

/// Returns whether the code is of the class of failed connections. A pooler reports its own failures with such a code.
fn is_of_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
}

/// Returns whether the connection has ended with this error. A pooler may send no severity but the one that a server would translate.
fn ends_connection(said: &DbError) -> bool {
    let is_fatal = match said.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => said.severity() == "FATAL",
    };
    is_fatal || is_of_connection(said.code())
}

/// The transactions of a session are read-only.
pub(crate) fn read_only(server: &str) -> Failure {
    let message = format!(
        "{server} accepts no writes; connect to the primary, and check default_transaction_read_only"
    );
    Failure::new(ErrorKind::Configuration, message)
}

/// The server accepts no writes.
pub(crate) fn standby(server: &str) -> Failure {
    let message = format!("{server} is a standby, which accepts no writes; name the primary in the URL");
    Failure::new(ErrorKind::Configuration, message)
}

/// Makes the failure of a server with which there is no connection.
pub(crate) fn unconnected(server: &str, cause: impl Display) -> Failure {
    Failure::unconnected(server, "PostgreSQL", cause)
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

/// Returns the last cause of an error that the server did not send: the driver's own words say less.
fn last_cause(error: &tokio_postgres::Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&(dyn StdError + 'static)| (*error).source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
}
