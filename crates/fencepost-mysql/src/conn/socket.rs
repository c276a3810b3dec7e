//! The socket of a connection, with TLS or without.

use std::io;

use fencepost_sql::Failure;
use fencepost_tls::{Certificates, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A socket, with TLS or without.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A socket of either kind.
pub(crate) type Socket = Box<dyn Stream>;

/// How connections are secured.
pub(crate) enum Security {
    None,
    Tls(Certificates),
}

impl Security {
    /// Reads the files of certificates.
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        let Some(tls) = tls else { return Ok(Security::None) };
        Ok(Security::Tls(Certificates::read(tls)?))
    }

    /// Returns whether connections use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        !matches!(self, Security::None)
    }

    /// Returns why changed files of certificates are not in use, if they are not.
    pub(crate) fn unread(&self) -> Option<String> {
        match self {
            Security::None => None,
            Security::Tls(certificates) => certificates.unread(),
        }
    }

    /// Starts TLS if it is asked for.
    pub(crate) async fn secure(&self, stream: TcpStream, _host: &str) -> io::Result<Socket> {
        match self {
            Security::None => Ok(Box::new(stream)),
            #[cfg(not(feature = "tls"))]
            Security::Tls(_) => unreachable!("the URL was refused"),
            #[cfg(feature = "tls")]
            Security::Tls(certificates) => {
                let connector = tokio_rustls::TlsConnector::from(certificates.config());
                let name = fencepost_tls::server_name(_host).map_err(io::Error::other)?;
                Ok(Box::new(connector.connect(name, stream).await?))
            }
        }
    }
}
