//! Failed statements and what to do about them.

use std::fmt;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Reply, Result, Runtime};

/// How often a transaction is repeated when others are in its way.
const MAX_CONFLICTS: u32 = 20;

/// How long after its first attempt a transaction is still repeated. The server ends a transaction whose client falls silent after 5 s, so
/// whoever was in the way at first has committed or was ended by then. A statement waits for a row for up to 3 s, so the last attempt ends
/// within about 8 s. Core asks again for a claim that waits for longer.
const REPEAT_FOR: Duration = Duration::from_secs(5);

/// The pause before a transaction is repeated, times the number of the repetition.
const PAUSE: Duration = Duration::from_millis(2);

/// A failed statement. Unlike [`Error`] it can be cloned, for all callers of one request.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its kind.
    pub kind: ErrorKind,
    /// The failure and the advice.
    pub message: String,
    /// The message of the driver.
    pub cause: Option<String>,
    /// Trying again later may help.
    pub transient: bool,
    /// The statement may have had an effect, or may have one later.
    pub uncertain: bool,
    /// Another transaction was in the way. Nothing took effect, and the statement can be repeated at once.
    pub conflict: bool,
    /// The connection has ended. The server frees what it held.
    pub closed: bool,
    /// The server interrupted the statement, because this client or somebody else asked for it.
    pub interrupted: bool,
    /// The connection must not be used any more: a pooler answers, or a server that accepts no writes.
    pub unusable: bool,
    /// A table is missing.
    pub no_table: bool,
    /// The server is another one than that of the client's open connections.
    pub other_server: bool,
}

impl Failure {
    /// Says that the statement failed because a lease table is missing.
    #[must_use]
    pub fn without_table(self) -> Failure {
        let message = "a lease table is missing; run fencepost schema --apply with this URL, as a user who may create tables".to_owned();
        Failure { kind: ErrorKind::Configuration, message, no_table: true, ..self }
    }

    /// Makes a failure of a statement that has certainly had no effect.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
            cause: None,
            transient: kind == ErrorKind::Unreachable,
            uncertain: false,
            conflict: false,
            closed: false,
            interrupted: false,
            unusable: false,
            no_table: false,
            other_server: false,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, cause: impl fmt::Display) -> Failure {
        Failure { cause: Some(cause.to_string()), ..self }
    }

    /// Adds a note to the message, if there is one.
    #[must_use]
    pub fn noting(mut self, note: Option<String>) -> Failure {
        if let Some(note) = note {
            self.message = format!("{}; {note}", self.message);
        }
        self
    }

    /// Notes that trying again later may help.
    #[must_use]
    pub fn transient(self) -> Failure {
        Failure { transient: true, ..self }
    }

    /// Notes that nothing took effect, and nothing will.
    pub(crate) fn certain(self) -> Failure {
        Failure { uncertain: false, ..self }
    }

    /// Makes the failure of a server with which there is no connection. `product`: the name of the server's software.
    pub fn unconnected(server: &str, product: &str, cause: impl fmt::Display) -> Failure {
        let message = format!(
            "cannot connect to {product} at {server} (is it running, and does it require TLS: sslmode=verify-full?)"
        );
        Failure::new(ErrorKind::Unreachable, message).because(cause)
    }

    /// Makes the failure of a statement whose time is over.
    pub fn timeout(server: &str) -> Failure {
        let message = format!(
            "{server} did not answer in time; try again, and check the network and the server's load"
        );
        Failure { uncertain: true, ..Failure::new(ErrorKind::Unreachable, message) }
    }

    /// Makes the failure of a statement whose connection had ended before.
    pub fn ended(server: &str) -> Failure {
        let message = format!("the connection to {server} ended; try again");
        Failure { closed: true, ..Failure::new(ErrorKind::Unreachable, message) }
    }

    /// Makes the failure of a client that was closed.
    #[must_use]
    pub fn closed() -> Failure {
        Failure::new(ErrorKind::Closed, Error::CLOSED)
    }

    /// Makes core's error of it. `engine`: the engine's name.
    pub fn on(self, engine: &'static str) -> Error {
        Error::from(self).on(engine)
    }
}

/// The engine adds its name.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let error =
            Error::new(failure.kind, failure.message).transient(failure.transient || failure.conflict);
        let error = if failure.uncertain { error.unknown() } else { error };
        match failure.cause {
            Some(cause) => error.because(&*cause),
            None => error,
        }
    }
}

/// The files of TLS cannot be used.
impl From<fencepost_tls::TlsError> for Failure {
    fn from(error: fencepost_tls::TlsError) -> Failure {
        Failure {
            cause: error.cause.map(|cause| cause.to_string()),
            ..Failure::new(error.kind, error.message)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Adds the engine's name to the error of `work`.
pub fn named<'a, T: 'a>(
    engine: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'a,
) -> Reply<'a, Result<T>> {
    Reply::coming(async move { work.await.map_err(|error| error.on(engine)) })
}

/// Runs `attempt` again, after pauses that grow, while other transactions are in its way, for at most [`REPEAT_FOR`].
pub(crate) async fn past_conflicts<T, F>(runtime: &Runtime, attempt: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let clock = runtime.clock();
    let until = clock.now() + REPEAT_FOR;
    for number in 1..=MAX_CONFLICTS {
        match attempt().await {
            Err(failure) if failure.conflict && clock.now() < until => {
                clock.sleep_until(clock.now() + PAUSE * number).await;
            }
            other => return other,
        }
    }
    attempt().await
}
