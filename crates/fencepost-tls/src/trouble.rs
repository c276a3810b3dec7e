//! Failures of TLS: their meaning, and what to do.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::io;
use std::sync::Arc;

use fencepost_core::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError};

/// A failure of TLS in words, to be told to any number of callers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The failure, and what to do.
    pub message: String,
    /// The cause, in the words of rustls or the system.
    pub cause: Option<String>,
}

/// How URLs of an engine begin, without TLS and with it.
#[derive(Clone, Copy, Debug)]
pub struct Schemes {
    /// As in `redis:`.
    pub plain: &'static str,
    /// As in `rediss:`.
    pub tls: &'static str,
}

impl Trouble {
    /// A failure of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Trouble {
        Trouble { kind, message: message.into(), cause: None }
    }

    /// The same with a cause.
    #[must_use]
    pub fn because(mut self, cause: &dyn Display) -> Trouble {
        self.cause = Some(cause.to_string());
        self
    }

    /// Explains a handshake without an answer in TLS: a server without TLS takes it for the beginning of a request.
    pub fn none(address: &dyn Display, schemes: Schemes) -> Trouble {
        let Schemes { plain, tls } = schemes;
        Trouble::new(
            ErrorKind::Unreachable,
            format!(
                "{address} takes connections and does not answer in TLS; look whether it speaks TLS at this port: a URL with \
                 {tls} is for TLS, one with {plain} goes without"
            ),
        )
    }

    /// Explains why a connection failed, if the cause is TLS. `known`: the client has a certificate of its own.
    pub fn of(
        error: &(dyn StdError + 'static),
        address: &dyn Display,
        schemes: Schemes,
        known: bool,
    ) -> Option<Trouble> {
        let cause = cause(error)?;
        let trouble = |message: String| Trouble::new(ErrorKind::Configuration, message);
        let found = match cause {
            rustls::Error::InvalidMessage(_) => Trouble::none(address, schemes),
            rustls::Error::InvalidCertificate(bad) => trouble(match bad {
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    format!(
                        "the certificate of {address} is for another name; write one that stands in it into the URL"
                    )
                }
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => {
                    format!(
                        "the certificate of {address} is not valid today; renew it, or set this machine's clock right"
                    )
                }
                _ => format!(
                    "{address} has no certificate that is trusted here; name its authority with ca=/path"
                ),
            }),
            rustls::Error::AlertReceived(alert) if is_of_certificates(*alert) => trouble(if known {
                format!(
                    "{address} does not take our certificate; see to cert and key, and to the authorities that it trusts"
                )
            } else {
                wanted(address)
            }),
            // OpenSSL says no more than this in TLS 1.2 to who has no certificate.
            rustls::Error::AlertReceived(AlertDescription::HandshakeFailure) if !known => {
                trouble(format!("{}; or it has no cipher in common with us", wanted(address)))
            }
            rustls::Error::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::InsufficientSecurity
                | AlertDescription::ProtocolVersion,
            )
            | rustls::Error::PeerIncompatible(_) => trouble(format!(
                "{address} has no version of TLS in common with us, or no cipher; allow it TLS 1.2 or 1.3"
            )),
            rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => trouble(format!(
                "{address} does not go by this name in TLS; write one that stands in its certificate into the URL"
            )),
            _ => Trouble::new(
                ErrorKind::Unreachable,
                format!("{address} and we do not get on in TLS; see to its log"),
            ),
        };
        Some(found.because(cause))
    }
}

/// Finds the error of rustls among the causes.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    // The driver of Redis shares what it passes on.
    if let Some(shared) = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
        return cause(&**shared);
    }
    match error.downcast_ref::<io::Error>() {
        // Its `source` would be that of what it holds.
        Some(error) => cause(error.get_ref()?),
        None => cause(error.source()?),
    }
}

fn wanted(address: &dyn Display) -> String {
    format!("{address} wants to know its clients by certificates; name yours with cert=/path and key=/path")
}

fn is_of_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Error {
        let error = Error::new(trouble.kind, trouble.message);
        match trouble.cause {
            Some(cause) => error.because(cause),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_tells_what_to_do() {
        let schemes = Schemes { plain: "redis:", tls: "rediss:" };
        let read = |error: rustls::Error, known| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            Trouble::of(&error, &"h:1", schemes, known).expect("an affair of TLS")
        };
        let alert = rustls::Error::AlertReceived;
        let bad = rustls::Error::InvalidCertificate;
        for (error, known, says) in [
            (alert(AlertDescription::CertificateRequired), false, "name yours with cert=/path"),
            (alert(AlertDescription::HandshakeFailure), false, "name yours with cert=/path"),
            (alert(AlertDescription::HandshakeFailure), true, "allow it TLS 1.2 or 1.3"),
            (alert(AlertDescription::UnknownCA), true, "does not take our certificate"),
            (alert(AlertDescription::ProtocolVersion), false, "allow it TLS 1.2 or 1.3"),
            (bad(CertificateError::UnknownIssuer), false, "name its authority with ca=/path"),
            (bad(CertificateError::NotValidForName), false, "for another name"),
            (bad(CertificateError::Expired), false, "not valid today"),
        ] {
            let trouble = read(error, known);
            assert_eq!(trouble.kind, ErrorKind::Configuration, "{trouble}");
            assert!(trouble.message.contains(says) && trouble.message.contains("h:1"), "{trouble}");
        }
        let trouble = read(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), false);
        assert!(trouble.kind == ErrorKind::Unreachable && trouble.message.contains("redis:"), "{trouble}");
        assert_eq!(Trouble::of(&io::Error::other("x"), &"h:1", schemes, false), None);
    }
}
