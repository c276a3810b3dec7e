//! Files of certificates and keys.

use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use fencepost_core::ErrorKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsError;

/// The certificates of authorities.
pub(crate) fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = std::fs::read(path).map_err(|error| no_authorities(path).because(&error))?;
    match certificates(&bytes) {
        Ok(found) if found.is_empty() => Err(no_authorities(path).because(&"it holds none")),
        Ok(found) => Ok(found),
        Err(error) => Err(no_authorities(path).because(&error)),
    }
}

/// `ca` is not what it should be.
pub(crate) fn no_authorities(path: &Path) -> TlsError {
    bad(format!("ca names {}, which is no readable file of PEM certificates", path.display()))
}

/// Our certificate, and those between it and its authority.
pub(crate) fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read("cert", path)?;
    let shown = path.display();
    match certificates(&bytes) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ if PrivateKeyDer::from_pem_slice(&bytes).is_ok() => {
            Err(bad(format!("cert names {shown}, which holds a key; are cert and key swapped?")))
        }
        Ok(_) => Err(bad(format!("cert names {shown}, which holds no PEM certificate"))),
        Err(error) => {
            Err(bad(format!("cert names {shown}, which is no file of PEM certificates")).because(&error))
        }
    }
}

/// The key of our certificate.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read("key", path)?;
    let shown = path.display();
    if let Ok(key) = PrivateKeyDer::from_pem_slice(&bytes) {
        return Ok(key);
    }
    Err(bad(match certificates(&bytes) {
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

/// The text of a file that an option names.
pub(crate) fn text(option: &str, path: &Path) -> Result<String, TlsError> {
    read(option, path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(bytes).collect()
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
    use std::process::{Command, Stdio};

    use fencepost_testkit::server::TempDir;

    use crate::Tls;

    /// A certificate and its key, in files of these names.
    fn make(dir: &Path, cert: &str, key: &str) {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-subj", "/CN=localhost", "-keyout", key, "-out", cert])
            .current_dir(dir)
            .stderr(Stdio::null())
            .status();
        assert!(made.expect("openssl").success());
    }

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
        of("cert", "cert", "key").config().expect("all is well");
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
            let trouble = tls.config().expect_err(says);
            assert_eq!(trouble.kind, ErrorKind::Configuration, "{trouble}");
            assert!(trouble.message.contains(says) && trouble.message.contains(names), "{trouble}");
            assert!(!format!("{trouble:?} {tls:?}").contains("hunter2"), "{trouble:?}");
        }
    }
}
