//! Failures of TLS: their meaning, and what to do.

use std::fmt::{self, Display};

use fencepost_core::{BackendUrl, Error, ErrorKind};

/// A failure of TLS in words, to be told to any number of callers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The failure, and what to do.
    pub message: String,
    /// The cause, in the words of rustls or the system.
    pub cause: Option<String>,
}

pub(crate) fn not_built(address: &BackendUrl) -> Error {
    let message = format!(
        "{}: this program was built without the feature `tls`; build it with that feature",
        address.scheme
    );
    Error::invalid(message)
}

/// How URLs of an engine begin, without TLS and with it.
#[derive(Clone, Copy, Debug)]
pub struct Schemes {
    /// As in `redis:`.
    pub plain: &'static str,
    /// As in `rediss:`.
    pub tls: &'static str,
}

impl TlsError {
    /// A failure of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> TlsError {
        TlsError { kind, message: message.into(), cause: None }
    }

    /// The same with a cause.
    #[must_use]
    pub fn because(mut self, cause: &dyn Display) -> TlsError {
        self.cause = Some(cause.to_string());
        self
    }

    /// Explains a handshake without an answer in TLS: a server without TLS takes it for the beginning of a request.
    pub fn none(address: &dyn Display, schemes: Schemes) -> TlsError {
        let Schemes { plain, tls } = schemes;
        TlsError::new(
            ErrorKind::Unreachable,
            format!(
                "{address} accepts connections, but does not answer in TLS; check the port: a URL with {tls} is for TLS, one \
                 with {plain} goes without"
            ),
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<TlsError> for Error {
    fn from(trouble: TlsError) -> Error {
        let error = Error::new(trouble.kind, trouble.message);
        match trouble.cause {
            Some(cause) => error.because(cause),
            None => error,
        }
    }
}
