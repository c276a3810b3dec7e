//! TLS: whom we trust, and who we are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::Error;
use fencepost_tls::{Certificates, Schemes, Tls, TlsError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::error::redis_error;

const SCHEMES: Schemes = Schemes { plain: "redis:", tls: "rediss:" };

/// Whom we trust, and who we are. Servers' certificates are always checked.
#[derive(Clone)]
pub(crate) struct Security {
    certificates: Arc<Certificates>,
    /// The last server that took a connection has not answered our greeting.
    unanswered: Arc<AtomicBool>,
}

impl Security {
    pub(crate) fn new(tls: &Tls) -> Result<Security, Error> {
        Ok(Security {
            certificates: Arc::new(Certificates::read(tls).map_err(of_tls)?),
            unanswered: Arc::default(),
        })
    }

    pub(crate) async fn wrap(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Given up midway, it stays so.
        self.unanswered.store(true, Ordering::Relaxed);
        let wrapped = TlsConnector::from(self.certificates.config()).connect(name, stream).await;
        self.unanswered.store(false, Ordering::Relaxed);
        wrapped
    }

    /// Words for a time that is over, if it went by with a greeting that nobody answered: to a server without TLS it is the
    /// beginning of a line.
    pub(crate) fn unanswered(&self, address: &dyn std::fmt::Display) -> Option<Error> {
        self.unanswered.load(Ordering::Relaxed).then(|| of_tls(TlsError::none(address, SCHEMES)))
    }

    /// Words for what a connection failed with, if that is an affair of TLS.
    pub(crate) fn failure(
        &self,
        error: &(dyn std::error::Error + 'static),
        address: &dyn std::fmt::Display,
    ) -> Option<Error> {
        self.certificates.explain(error, address, SCHEMES).map(of_tls)
    }
}

fn of_tls(failed: TlsError) -> Error {
    let error = redis_error(failed.kind, failed.message);
    match failed.cause {
        Some(cause) => error.because(cause),
        None => error,
    }
}
