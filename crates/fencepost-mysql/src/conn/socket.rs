//! The socket of a connection, with TLS or without.

use std::io;
use std::time::Duration;

use fencepost_core::ErrorKind;
use fencepost_tls::Tls;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::error::Failure;

/// A socket, with TLS or without.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A socket of either kind.
pub(crate) type Socket = Box<dyn Stream>;

/// Connects a socket. `pinned`: programs that this process starts inherit it.
pub(crate) async fn dial((host, port): &(String, u16), pinned: bool) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    // A waiting statement has no time limit: keep-alives end it when the network is silent.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&stream, 11_000)?;
    if pinned {
        rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())?;
    }
    Ok(stream)
}

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
        let config = tls.config().map_err(|error| {
            let failure = Failure::new(error.kind, error.message);
            match error.cause {
                Some(cause) => failure.because(cause),
                None => failure,
            }
        })?;
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

/// Checks that a certificate can name each host.
pub(crate) fn check_hosts(tls: Option<&Tls>, hosts: &[(String, u16)]) -> Result<(), Failure> {
    for (host, _) in hosts.iter().filter(|_| tls.is_some()) {
        fencepost_tls::server_name(host)
            .map_err(|error| Failure::new(ErrorKind::Invalid, error.to_string()))?;
    }
    Ok(())
}
