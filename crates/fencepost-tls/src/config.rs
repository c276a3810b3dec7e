//! The options of a URL for TLS.

use std::path::PathBuf;

use fencepost_core::{BackendUrl, Error, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;

/// The options of a URL for TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    /// A file of authorities; the system's if there is none.
    pub ca: Option<PathBuf>,
    /// Files of a certificate and of its key, by which a server knows us.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the [`OPTIONS`](crate::OPTIONS) of a URL; no file is opened. `built`: whether the engine of the URL was built with TLS. It may
    /// lack TLS where another engine has it.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): only one of `cert` and `key` is there, or the engine was built without TLS.
    pub fn read(address: &BackendUrl, built: bool) -> Result<Tls> {
        if !built {
            return Err(crate::error::not_built(address));
        }
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
