//! The configuration of a server: its certificate, and the authorities of its clients' certificates.

use std::path::PathBuf;
use std::sync::Arc;

use fencepost_core::ErrorKind;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;

use crate::certificates::{Certificates, roots};
use crate::config::Tls;
use crate::error::TlsError;
use crate::files::{self, Contents};

/// The protocols that an HTTP server offers.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl Certificates<ServerConfig> {
    /// Reads the files of an HTTP server: `cert` and `key`, and `clients` with the authorities of clients. With `clients`, each client
    /// must have a certificate.
    ///
    /// # Errors
    /// The fault of a file, with its path.
    pub fn of_server(cert: PathBuf, key: PathBuf, clients: Option<PathBuf>) -> Result<Self, TlsError> {
        Certificates::read_by(&Tls { ca: clients, identity: Some((cert, key)) }, load)
    }
}

/// Makes the configuration of a server.
fn load(tls: &Tls, contents: &Contents) -> Result<ServerConfig, TlsError> {
    let failed = |error: &dyn std::fmt::Display| {
        TlsError::new(ErrorKind::Internal, "TLS cannot be set up").because(error)
    };
    let (Some((cert, key)), Some((cert_bytes, key_bytes))) = (&tls.identity, &contents.identity) else {
        return Err(failed(&"a server needs a certificate"));
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    let builder = match &tls.ca {
        None => builder.with_no_client_auth(),
        Some(_) => {
            let roots = Arc::new(roots(tls, contents)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| failed(&error))?)
        }
    };
    let (chain, secret) = (files::chain(cert, cert_bytes)?, files::key(key, key_bytes)?);
    let config = builder.with_single_cert(chain, secret);
    let mut config = config.map_err(|error| files::mismatch(cert, key).because(&error))?;
    config.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use fencepost_testkit::needs;
    use fencepost_testkit::server::TempDir;

    use super::*;
    use crate::testing::make;

    #[test]
    fn a_server_uses_changed_files_and_names_wrong_ones() {
        needs!(OPENSSL);
        let dir = TempDir::new("tls").expect("a folder");
        let at = |name: &str| dir.path().join(name);
        make(dir.path(), "cert", "key");
        let server = Certificates::of_server(at("cert"), at("key"), Some(at("cert"))).expect("all is well");
        let before = server.config();
        assert!(Arc::ptr_eq(&before, &server.config()));
        make(dir.path(), "cert", "key");
        assert!(!Arc::ptr_eq(&before, &server.config()), "the files have changed");
        make(dir.path(), "other-cert", "other-key");
        for (cert, key, clients, names) in [
            ("cert", "other-key", "cert", "other-key"),
            ("cert", "key", "nowhere", "nowhere"),
            ("key", "cert", "cert", "key"),
        ] {
            let error = Certificates::of_server(at(cert), at(key), Some(at(clients))).expect_err(names);
            assert!(error.kind == ErrorKind::Configuration && error.message.contains(names), "{error}");
        }
    }
}
