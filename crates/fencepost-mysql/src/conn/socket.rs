//! The socket of a connection, with TLS or without.

use std::io;

use fencepost_sql::Failure;
use fencepost_tls::Tls;
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
    #[cfg(feature = "tls")]
    Tls(tokio_rustls::TlsConnector),
}

impl Security {
    /// Reads the files of certificates.
    #[cfg(feature = "tls")]
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        let Some(tls) = tls else { return Ok(Security::None) };
        let config = tls.config()?;
        Ok(Security::Tls(config.into()))
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        match tls {
            None => Ok(Security::None),
            Some(tls) => match *tls {},
        }
    }

    /// Returns whether connections use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        !matches!(self, Security::None)
    }

    /// Starts TLS if it is asked for.
    pub(crate) async fn secure(&self, stream: TcpStream, _host: &str) -> io::Result<Socket> {
        match self {
            Security::None => Ok(Box::new(stream)),
            #[cfg(feature = "tls")]
            Security::Tls(connector) => {
                let name = fencepost_tls::server_name(_host).map_err(io::Error::other)?;
                Ok(Box::new(connector.connect(name, stream).await?))
            }
        }
    }
}
