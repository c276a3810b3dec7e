//! The configuration of TLS that is in use: the files are read again when they have changed.

use std::fmt;
use std::sync::Arc;

use fencepost_core::ErrorKind;
use fencepost_core::sync::Mutex;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;

use crate::config::Tls;
use crate::error::{Schemes, TlsError};
use crate::files::{self, Contents};

/// The certificates of a client, or of a server: `C` is the configuration that they make. Certificates are rotated while programs run, so each connection asks for the current ones.
///
/// The files that a [`Tls`] names are read for each connection and compared with those in use: times of files are too coarse for that. If
/// they have changed, the next connections use them. Files that are missing, half-written or do not belong together leave those in use
/// as they are, so that the server decides. They are small and local, so they are read on the thread that connects. The system's own
/// authorities are read when another file has changed.
pub struct Certificates<C = ClientConfig> {
    tls: Tls,
    load: Load<C>,
    state: Mutex<State<C>>,
}

/// Makes a configuration from the contents of the files.
pub(crate) type Load<C> = fn(&Tls, &Contents) -> Result<C, TlsError>;

struct State<C> {
    current: Arc<Loaded<C>>,
    /// Why the changed files are not in use.
    unread: Option<TlsError>,
}

/// Certificates that were read together.
pub struct Loaded<C = ClientConfig> {
    /// The configuration for connections.
    pub config: Arc<C>,
    contents: Contents,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// The fault of a file, with its path, or that this system has no authorities.
    pub fn read(tls: &Tls) -> Result<Certificates, TlsError> {
        Certificates::read_by(tls, load)
    }

    /// Returns certificates that were read together as texts in PEM, for a driver that makes its own configuration.
    ///
    /// # Errors
    /// This system has no authorities.
    pub fn pem(&self, loaded: &Loaded) -> Result<Pem, TlsError> {
        let authorities = authorities(&self.tls, &loaded.contents)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let identity = loaded.contents.identity.as_ref().map(|(cert, key)| (text(cert), text(key)));
        Ok(Pem { authorities: authorities.iter().map(files::to_pem).collect(), identity })
    }
}

impl<C> Certificates<C> {
    /// Reads the files for the configuration that `load` makes.
    pub(crate) fn read_by(tls: &Tls, load: Load<C>) -> Result<Certificates<C>, TlsError> {
        let current = Arc::new(Loaded::read(tls, load, Contents::read(tls)?)?);
        Ok(Certificates { tls: tls.clone(), load, state: Mutex::new(State { current, unread: None }) })
    }

    /// Returns the configuration for a connection. Reads the files again.
    pub fn config(&self) -> Arc<C> {
        Arc::clone(&self.current().config)
    }

    /// Returns what to use for a connection. Reads the files again.
    pub fn current(&self) -> Arc<Loaded<C>> {
        // Another thread must not put older contents in the place of these.
        let mut state = self.state.lock();
        let changed = match Contents::read(&self.tls) {
            Ok(contents) if contents == state.current.contents => {
                state.unread = None;
                return Arc::clone(&state.current);
            }
            Ok(contents) => Loaded::read(&self.tls, self.load, contents),
            Err(trouble) => Err(trouble),
        };
        match changed {
            Ok(loaded) => {
                tracing::debug!("the files of certificates have changed, and are in use");
                *state = State { current: Arc::new(loaded), unread: None };
            }
            Err(trouble) => {
                // Once for each reason, and not for each connection.
                if state.unread.as_ref() != Some(&trouble) {
                    let cause = trouble.cause.as_deref();
                    tracing::warn!(error = %trouble, cause, "the changed files of certificates are not in use");
                }
                state.unread = Some(trouble);
            }
        }
        Arc::clone(&state.current)
    }

    /// Returns why the changed files are not in use, if they are not: a part of the message of a connection that failed.
    pub fn unread(&self) -> Option<String> {
        let state = self.state.lock();
        let trouble = state.unread.as_ref()?;
        let cause = trouble.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        Some(format!("the changed files of certificates are not in use, because {trouble}{cause}"))
    }

    /// Explains why a connection failed, if the cause is TLS.
    pub fn explain(
        &self,
        error: &(dyn std::error::Error + 'static),
        address: &dyn fmt::Display,
        schemes: Schemes,
    ) -> Option<TlsError> {
        let mut trouble = TlsError::of(error, address, schemes, self.tls.has_identity())?;
        if let Some(unread) = self.unread() {
            trouble.message = format!("{}; {unread}", trouble.message);
        }
        Some(trouble)
    }
}

impl<C> Loaded<C> {
    fn read(tls: &Tls, load: Load<C>, contents: Contents) -> Result<Loaded<C>, TlsError> {
        Ok(Loaded { config: Arc::new(load(tls, &contents)?), contents })
    }
}

/// Makes the configuration of a client.
fn load(tls: &Tls, contents: &Contents) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new(ErrorKind::Internal, "TLS cannot be set up").because(&error))?
        .with_root_certificates(roots(tls, contents)?);
    let config = match (&tls.identity, &contents.identity) {
        (Some((cert, key)), Some((cert_bytes, key_bytes))) => {
            let (chain, secret) = (files::chain(cert, cert_bytes)?, files::key(key, key_bytes)?);
            builder
                .with_client_auth_cert(chain, secret)
                .map_err(|error| files::mismatch(cert, key).because(&error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(config)
}

pub(crate) fn roots(tls: &Tls, contents: &Contents) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = authorities(tls, contents)?;
    match &tls.ca {
        Some(path) => {
            for authority in found {
                roots.add(authority).map_err(|error| files::no_authorities(path).because(&error))?;
            }
        }
        None => drop(roots.add_parsable_certificates(found)),
    }
    if roots.is_empty() {
        return Err(TlsError::new(
            ErrorKind::Configuration,
            "this system has no authorities for TLS; install ca-certificates, or name a file with ca=/path",
        ));
    }
    Ok(roots)
}

fn authorities(tls: &Tls, contents: &Contents) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match (&tls.ca, &contents.ca) {
        (Some(path), Some(bytes)) => files::authorities(path, bytes),
        _ => Ok(rustls_native_certs::load_native_certs().certs),
    }
}

/// Certificates as texts in PEM. `Debug` does not show them.
pub struct Pem {
    /// The certificates of the authorities.
    pub authorities: String,
    /// A certificate and its key.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Loaded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Certificates<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("tls", &self.tls).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_testkit::needs;
    use fencepost_testkit::server::TempDir;

    use super::*;
    use crate::testing::make;

    #[test]
    fn changed_files_are_used_once_they_belong_together() {
        needs!(OPENSSL);
        let dir = TempDir::new("tls").expect("a folder");
        make(dir.path(), "cert", "key");
        make(dir.path(), "new-cert", "new-key");
        let at = |name: &str| dir.path().join(name);
        let copy = |from: &str, to: &str| assert!(std::fs::copy(at(from), at(to)).is_ok());
        let tls = Tls { ca: Some(at("cert")), identity: Some((at("cert"), at("key"))) };
        let certificates = Certificates::read(&tls).expect("all is well");
        let first = certificates.current();
        let is_first = || Arc::ptr_eq(&first, &certificates.current());
        assert!(is_first() && certificates.unread().is_none(), "nothing has changed");

        copy("new-cert", "cert");
        assert!(is_first(), "the key is the old one");
        let unread = certificates.unread().expect("a reason");
        assert!(unread.contains("do not belong together") && unread.contains("key"), "{unread}");
        std::fs::remove_file(at("key")).expect("it is there");
        assert!(is_first(), "a file is missing");
        let unread = certificates.unread().expect("a reason");
        assert!(unread.contains("cannot be read") && unread.contains("key"), "{unread}");
        let secret = std::fs::read_to_string(at("new-key")).expect("a key");
        std::fs::write(at("key"), &secret[..secret.len() / 2]).expect("written");
        assert!(is_first(), "half of a file");
        let unread = certificates.unread().expect("a reason");
        let line = secret.lines().nth(1).expect("a line of the key");
        assert!(unread.contains("no PEM key") && !unread.contains(line), "{unread}");

        copy("new-key", "key");
        let second = certificates.current();
        assert!(!Arc::ptr_eq(&first, &second) && certificates.unread().is_none());
        let pem = certificates.pem(&second).expect("it has authorities");
        assert!(!format!("{certificates:?} {second:?} {pem:?}").contains(line), "a secret is shown");
        let (cert, key) = pem.identity.expect("there is one");
        assert_eq!((cert, key), (std::fs::read_to_string(at("new-cert")).expect("read"), secret));
        copy("new-cert", "key");
        assert!(Arc::ptr_eq(&second, &certificates.current()), "the last good ones stay");
    }
}
