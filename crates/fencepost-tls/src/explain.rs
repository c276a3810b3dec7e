//! The meaning of rustls's errors.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

use fencepost_core::ErrorKind;
use rustls::{AlertDescription, CertificateError};

use crate::error::{Schemes, TlsError};

impl TlsError {
    /// Explains why a connection failed, if the cause is TLS. `known`: the client has a certificate of its own.
    pub fn of(
        error: &(dyn StdError + 'static),
        address: &dyn Display,
        schemes: Schemes,
        known: bool,
    ) -> Option<TlsError> {
        let cause = cause(error)?;
        let trouble = |message: String| TlsError::new(ErrorKind::Configuration, message);
        let found = match cause {
            rustls::Error::InvalidMessage(_) => TlsError::none(address, schemes),
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
                // Its text is a list of numbers.
                _ if is_of_another_authority(bad) => {
                    return Some(trouble(format!(
                        "{address} has no certificate that is trusted here, because another authority signed it; name its authority with ca=/path"
                    )));
                }
                CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => format!(
                    "{address} shows the certificate of an authority (CA:TRUE); make one with CA:FALSE, and name its issuer with ca=/path"
                ),
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
            _ => TlsError::new(
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

/// An authority of the same name has another key.
fn is_of_another_authority(bad: &CertificateError) -> bool {
    matches!(
        bad,
        CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_tells_what_to_do() {
        let schemes = Schemes { plain: "redis:", tls: "rediss:" };
        let read = |error: rustls::Error, known| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            TlsError::of(&error, &"h:1", schemes, known).expect("an affair of TLS")
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
            (bad(CertificateError::BadSignature), false, "another authority signed it"),
            (bad(CertificateError::NotValidForName), false, "for another name"),
            (bad(CertificateError::Expired), false, "not valid today"),
        ] {
            let trouble = read(error, known);
            assert_eq!(trouble.kind, ErrorKind::Configuration, "{trouble}");
            assert!(trouble.message.contains(says) && trouble.message.contains("h:1"), "{trouble}");
        }
        let trouble = read(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), false);
        assert!(trouble.kind == ErrorKind::Unreachable && trouble.message.contains("redis:"), "{trouble}");
        assert_eq!(TlsError::of(&io::Error::other("x"), &"h:1", schemes, false), None);
    }
}
