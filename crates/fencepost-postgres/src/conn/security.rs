//! Connects with TLS or without.

use fencepost_sql::Failure;
use fencepost_tls::Tls;
use futures_util::stream::{BoxStream, poll_fn};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, NoTls};

/// How connections are secured.
#[derive(Clone)]
pub(crate) enum Security {
    None,
    #[cfg(feature = "tls")]
    Tls(tokio_postgres_rustls::MakeRustlsConnect),
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
    #[cfg(feature = "tls")]
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        let Some(tls) = tls else { return Ok(Security::None) };
        let config = tls.config()?;
        Ok(Security::Tls(tokio_postgres_rustls::MakeRustlsConnect::new((*config).clone())))
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn of(tls: Option<&Tls>) -> Result<Security, Failure> {
        match tls {
            None => Ok(Security::None),
            Some(tls) => match *tls {},
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
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                let (client, connection) = config.connect_raw(stream, connector(tls, host)?).await?;
                Ok((client, driver(connection)))
            }
        }
    }

    /// Asks the server to cancel the statement that a connection runs.
    pub(crate) async fn cancel(
        &self,
        token: &CancelToken,
        #[cfg_attr(not(feature = "tls"), expect(unused_variables))] host: &str,
        stream: TcpStream,
    ) -> Result<(), Failed> {
        match self {
            Security::None => Ok(token.cancel_query_raw(stream, NoTls).await?),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => Ok(token.cancel_query_raw(stream, connector(tls, host)?).await?),
        }
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
    tls: &tokio_postgres_rustls::MakeRustlsConnect,
    host: &str,
) -> Result<<tokio_postgres_rustls::MakeRustlsConnect as MakeTlsConnect<TcpStream>>::TlsConnect, Failed> {
    let made = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls.clone(), host);
    made.map_err(|error| Failed::Name(error.to_string()))
}
