//! The configuration of TLS, made of the options of a URL.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fencepost_core::{BackendUrl, Error, ErrorKind, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::TlsError;
use crate::files;

/// The options of a URL for TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    /// A file of authorities; the system's if there is none.
    pub ca: Option<PathBuf>,
    /// Files of a certificate and of its key, by which a server knows us.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the [`OPTIONS`](crate::OPTIONS) of a URL; no file is opened.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): only one of `cert` and `key` is there.
    pub fn read(address: &BackendUrl) -> Result<Tls> {
        let file = |key| address.option(key).map(PathBuf::from);
        let identity = match (file("cert"), file("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "cert and key go together: the files of a certificate and of its key",
                ));
            }
        };
        Ok(Tls { ca: file("ca"), identity })
    }

    /// Returns whether the client has a certificate.
    pub fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// The configuration for connections. Reads the files.
    ///
    /// # Errors
    /// The fault of a file, with its path, or that this system has no authorities.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(ErrorKind::Internal, "TLS cannot be set up").because(&error))?
            .with_root_certificates(self.roots()?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let (chain, secret) = (files::chain(cert)?, files::key(key)?);
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| files::mismatch(cert, key).because(&error))?
            }
        };
        Ok(Arc::new(config))
    }

    /// Returns the same files as texts in PEM, for a driver that makes its own configuration. Call [`config`](Tls::config) before: it
    /// says better what is wrong with a file.
    ///
    /// # Errors
    /// The fault of a file, with its path, or that this system has no authorities.
    pub fn pem(&self) -> Result<Pem, TlsError> {
        let authorities = self.authorities()?.iter().map(files::to_pem).collect();
        let identity = match &self.identity {
            None => None,
            Some((cert, key)) => Some((files::text("cert", cert)?, files::text("key", key)?)),
        };
        Ok(Pem { authorities, identity })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for authority in self.authorities()? {
                    roots.add(authority).map_err(|error| files::no_authorities(path).because(&error))?;
                }
            }
            None => drop(roots.add_parsable_certificates(self.authorities()?)),
        }
        if roots.is_empty() {
            return Err(TlsError::new(
                ErrorKind::Configuration,
                "this system has no authorities for TLS; install ca-certificates, or name a file with ca=/path",
            ));
        }
        Ok(roots)
    }

    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        match &self.ca {
            Some(path) => files::authorities(path),
            None => Ok(rustls_native_certs::load_native_certs().certs),
        }
    }
}

/// The files of a [`Tls`] as texts in PEM. `Debug` does not show them.
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

/// Installs aws-lc-rs as the process's provider if there is none: a driver that takes the process's provider panics when the program has
/// linked two and installed none.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may install one meanwhile.
        let _ = aws_lc_rs::default_provider().install_default();
    }
}

/// Returns the name that the certificate of `host` must have.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid): no certificate can have it.
pub fn server_name(host: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|error| {
        let message = format!("{host} is no name that a certificate can have; write a host or an address");
        Error::invalid(message).because(error)
    })
}
