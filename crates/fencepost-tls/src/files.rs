//! Files of certificates and keys.

use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use fencepost_core::ErrorKind;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;
use crate::error::TlsError;

/// The contents of the files of a [`Tls`]. There is no `Debug`: one of them is a key.
#[derive(PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Contents {
    /// Reads the files.
    pub(crate) fn read(tls: &Tls) -> Result<Contents, TlsError> {
        let ca = match &tls.ca {
            Some(path) => Some(std::fs::read(path).map_err(|error| no_authorities(path).because(&error))?),
            None => None,
        };
        let identity = match &tls.identity {
            Some((cert, key)) => Some((read("cert", cert)?, read("key", key)?)),
            None => None,
        };
        Ok(Contents { ca, identity })
    }
}

/// The certificates of authorities.
pub(crate) fn authorities(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match certificates(bytes) {
        Ok(found) if found.is_empty() => Err(no_authorities(path).because(&"it holds none")),
        Ok(found) => Ok(found),
        Err(error) => Err(no_authorities(path).because(&in_words(&error))),
    }
}

/// `ca` is not what it should be.
pub(crate) fn no_authorities(path: &Path) -> TlsError {
    bad(format!("ca names {}, which is no readable file of PEM certificates", path.display()))
}

/// Our certificate, and those between it and its authority.
pub(crate) fn chain(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let shown = path.display();
    match certificates(bytes) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ if PrivateKeyDer::from_pem_slice(bytes).is_ok() => {
            Err(bad(format!("cert names {shown}, which holds a key; are cert and key swapped?")))
        }
        Ok(_) => Err(bad(format!("cert names {shown}, which holds no PEM certificate"))),
        Err(error) => {
            let message = format!("cert names {shown}, which is no file of PEM certificates");
            Err(bad(message).because(&in_words(&error)))
        }
    }
}

/// The key of our certificate.
pub(crate) fn key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let shown = path.display();
    if let Ok(key) = PrivateKeyDer::from_pem_slice(bytes) {
        return Ok(key);
    }
    Err(bad(match certificates(bytes) {
        Ok(found) if !found.is_empty() => {
            format!("key names {shown}, which holds a certificate; are cert and key swapped?")
        }
        _ if bytes.windows(9).any(|part| part == b"ENCRYPTED") => {
            format!(
                "key names {shown}, which is encrypted; write it without a passphrase, for this user alone"
            )
        }
        _ => format!("key names {shown}, which holds no PEM key"),
    }))
}

/// Certificate and key do not go together, or are of no kind that we know.
pub(crate) fn mismatch(cert: &Path, key: &Path) -> TlsError {
    bad(format!("cert and key name {} and {}, which do not belong together", cert.display(), key.display()))
}

/// Encodes a certificate in PEM.
pub(crate) fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let text = BASE64_STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    CertificateDer::pem_slice_iter(bytes).collect()
}

/// Says what is wrong with a text in PEM. The parser's own words contain bytes of the file.
fn in_words(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { .. } => "the end of a section is missing".to_owned(),
        PemError::IllegalSectionStart { .. } => "the beginning of a section is malformed".to_owned(),
        error => error.to_string(),
    }
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| {
        bad(format!("{option} names {}, which cannot be read", path.display())).because(&error)
    })
}

fn bad(message: String) -> TlsError {
    TlsError::new(ErrorKind::Configuration, message)
}

#[cfg(test)]
mod tests {
    use fencepost_testkit::needs;
    use fencepost_testkit::server::TempDir;

    use crate::testing::make;
    use crate::{Certificates, Tls};

    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_told_by_its_name() {
        needs!(OPENSSL);
        let dir = TempDir::new("tls").expect("a folder");
        make(dir.path(), "cert", "key");
        make(dir.path(), "other-cert", "other-key");
        std::fs::write(dir.path().join("text"), "hunter2").expect("a file");
        std::fs::write(dir.path().join("locked"), "-----BEGIN ENCRYPTED PRIVATE KEY-----\n").expect("a file");
        let of = |ca: &str, cert: &str, key: &str| {
            let at = |name: &str| dir.path().join(name);
            Tls { ca: Some(at(ca)), identity: Some((at(cert), at(key))) }
        };
        Certificates::read(&of("cert", "cert", "key")).expect("all is well");
        for (tls, says, names) in [
            (of("text", "cert", "key"), "ca names", "text"),
            (of("nowhere", "cert", "key"), "ca names", "nowhere"),
            (of("cert", "nowhere", "key"), "cannot be read", "nowhere"),
            (of("cert", "text", "key"), "no PEM certificate", "text"),
            (of("cert", "cert", "text"), "no PEM key", "text"),
            (of("cert", "cert", "locked"), "is encrypted", "locked"),
            (of("cert", "key", "cert"), "are cert and key swapped?", "key"),
            (of("cert", "cert", "other-cert"), "are cert and key swapped?", "other-cert"),
            (of("cert", "cert", "other-key"), "do not belong together", "other-key"),
        ] {
            let trouble = Certificates::read(&tls).expect_err(says);
            assert_eq!(trouble.kind, ErrorKind::Configuration, "{trouble}");
            assert!(trouble.message.contains(says) && trouble.message.contains(names), "{trouble}");
            assert!(!format!("{trouble:?} {tls:?}").contains("hunter2"), "{trouble:?}");
        }
    }
}
