//! TLS: whom we trust.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::ErrorKind;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::config::Tls;
use crate::error::Failure;

/// Whom we trust. Servers' certificates are always checked.
#[derive(Clone)]
pub(crate) struct Security {
    config: Arc<ClientConfig>,
    /// The last server that took a connection has not answered our greeting.
    unanswered: Arc<AtomicBool>,
}

impl Security {
    pub(crate) fn new(tls: &Tls) -> Result<Security, Failure> {
        let mut roots = RootCertStore::empty();
        match &tls.ca {
            Some(path) => {
                let shown = path.display();
                let bad = |error: &dyn std::fmt::Display| {
                    Failure::new(
                        ErrorKind::Configuration,
                        format!("ca names {shown}, which is no readable file of PEM certificates"),
                    )
                    .because(error)
                };
                for authority in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
                    let authority = authority.map_err(|error| bad(&error))?;
                    roots.add(authority).map_err(|error| bad(&error))?;
                }
                if roots.is_empty() {
                    return Err(bad(&"it holds none"));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(Failure::new(
                        ErrorKind::Configuration,
                        "this system has no authorities for TLS; install ca-certificates, or name a file with ca=/path",
                    ));
                }
            }
        }
        // Named here, because a program may have several providers linked and none installed.
        let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::new(ErrorKind::Internal, "TLS cannot be set up").because(error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Security { config: Arc::new(config), unanswered: Arc::default() })
    }

    pub(crate) async fn wrap(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Given up midway, it stays so.
        self.unanswered.store(true, Ordering::Relaxed);
        let wrapped = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await;
        self.unanswered.store(false, Ordering::Relaxed);
        wrapped
    }

    /// Words for a time that is over, if it went by with a greeting that nobody answered: to a server without TLS it is the
    /// beginning of a line.
    pub(crate) fn unanswered(&self, address: &dyn std::fmt::Display) -> Option<Failure> {
        self.unanswered.load(Ordering::Relaxed).then(|| none(address))
    }
}

/// The server speaks no TLS.
pub(crate) fn none(address: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        ErrorKind::Unreachable,
        format!(
            "{address} takes connections and does not answer in TLS; look whether it speaks TLS at this port: without it a URL \
             begins with redis:, and not with rediss:"
        ),
    )
}
