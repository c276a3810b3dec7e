//! Connects with TLS or without.

use fencepost_sql::Failure;
use fencepost_tls::{Certificates, Tls};
use futures_util::stream::{BoxStream, poll_fn};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, NoTls};

/// How connections are secured.
pub(crate) enum Security {
    None,
    Tls(Certificates),
}

/// The driver's task of a connection: a stream of the messages that are no replies. It must be polled for the client to work.
pub(crate) type Driver = BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

fn driver<S, T>(mut connection: Connection<S, T>) -> Driver
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(poll_fn(move |cx| connection.poll_message(cx)))
}

impl Security {
    /// Reads the files of certificates.
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        let Some(tls) = tls else { return Ok(Security::None) };
        Ok(Security::Tls(Certificates::read(tls)?))
    }

    /// Returns why changed files of certificates are not in use, if they are not.
    pub(crate) fn unread(&self) -> Option<String> {
        match self {
            Security::None => None,
            Security::Tls(certificates) => certificates.unread(),
        }
    }

    /// Greets the server. The driver's task must be run for the client to work.
    pub(crate) async fn connect(
        &self,
        config: &Config,
        #[cfg_attr(not(feature = "tls"), expect(unused_variables))] host: &str,
        stream: TcpStream,
    ) -> Result<(Client, Driver), Failed> {
        match self {
            Security::None => {
                let (client, connection) = config.connect_raw(stream, NoTls).await?;
                Ok((client, driver(connection)))
            }
            #[cfg(not(feature = "tls"))]
            Security::Tls(_) => unreachable!("the URL was refused"),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                let (client, connection) = config.connect_raw(stream, connector(tls, host)?).await?;
                Ok((client, driver(connection)))
            }
        }
    }

    /// Asks the server to cancel the statement of another connection. A server that has ended that connection ignores this.
    pub(crate) async fn cancel(
        &self,
        token: &CancelToken,
        #[cfg_attr(not(feature = "tls"), expect(unused_variables))] host: &str,
        stream: TcpStream,
    ) -> Result<(), Failed> {
        match self {
            Security::None => token.cancel_query_raw(stream, NoTls).await?,
            #[cfg(not(feature = "tls"))]
            Security::Tls(_) => unreachable!("the URL was refused"),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => token.cancel_query_raw(stream, connector(tls, host)?).await?,
        }
        Ok(())
    }
}

/// A greeting that failed.
pub(crate) enum Failed {
    Driver(tokio_postgres::Error),
    /// No certificate can have the host's name.
    #[cfg(feature = "tls")]
    Name(String),
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Failed {
        Failed::Driver(error)
    }
}

#[cfg(feature = "tls")]
fn connector(
    certificates: &Certificates,
    host: &str,
) -> Result<<tokio_postgres_rustls::MakeRustlsConnect as MakeTlsConnect<TcpStream>>::TlsConnect, Failed> {
    let mut tls = tokio_postgres_rustls::MakeRustlsConnect::new((*certificates.config()).clone());
    let made = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host);
    made.map_err(|error| Failed::Name(error.to_string()))
}
