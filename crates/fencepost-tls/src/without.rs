//! A build without TLS.

use fencepost_core::{BackendUrl, Result};

use crate::error::TlsError;

/// The options of a URL for TLS. Without the feature there is no such value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tls {}

impl Tls {
    /// Refuses a URL that asks for TLS.
    ///
    /// # Errors
    /// [`is_invalid`](fencepost_core::Error::is_invalid), always: it names the feature.
    pub fn read(address: &BackendUrl, _built: bool) -> Result<Tls> {
        Err(crate::error::not_built(address))
    }

    /// Returns whether the client has a certificate.
    pub fn has_identity(&self) -> bool {
        match *self {}
    }
}

/// The certificates of a client. Without the feature there is no such value.
#[derive(Debug)]
pub enum Certificates {}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// Never.
    pub fn read(tls: &Tls) -> std::result::Result<Certificates, TlsError> {
        match *tls {}
    }

    /// Returns why the changed files are not in use, if they are not.
    pub fn unread(&self) -> Option<String> {
        match *self {}
    }
}

/// Accepts each host: no certificate is checked.
///
/// # Errors
/// Never.
pub fn server_name(_host: &str) -> Result<()> {
    Ok(())
}
