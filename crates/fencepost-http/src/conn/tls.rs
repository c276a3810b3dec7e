//! TLS of the connections.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_tls::{Certificates, Schemes, TlsError};
use http::Uri;
use hyper_rustls::HttpsConnector;
pub(crate) use hyper_rustls::MaybeHttpsStream as Stream;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::conn::connector::BoxError;

const SCHEMES: Schemes = Schemes { plain: "http:", tls: "https:" };

pub(crate) fn plain(stream: TokioIo<TcpStream>) -> Stream<TokioIo<TcpStream>> {
    Stream::Http(stream)
}

/// Connects with the certificates that are in the files now. The handshake may take as long as the connection.
pub(crate) async fn connect(
    tcp: HttpConnector,
    certificates: &Certificates,
    uri: Uri,
    timeout: Duration,
) -> Result<Stream<TokioIo<TcpStream>>, BoxError> {
    let mut config = (*certificates.config()).clone();
    // Each request has a connection of its own. Over HTTP/2 waiting requests would use up the streams of the connection, and renewals
    // would wait behind them.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let connected = HttpsConnector::from((tcp, Arc::new(config))).call(uri);
    tokio::time::timeout(2 * timeout, connected).await.unwrap_or_else(|_| Err(NoHandshake.into()))
}

/// The server has accepted the connection, and has not answered in TLS.
#[derive(Debug)]
struct NoHandshake;

impl fmt::Display for NoHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer to the handshake")
    }
}

impl StdError for NoHandshake {}

/// Explains why a connection failed, if the cause is TLS.
pub(crate) fn explain(
    certificates: &Certificates,
    error: &(dyn StdError + 'static),
    url: &str,
) -> Option<TlsError> {
    let mut causes =
        std::iter::successors(Some(error), |error: &&'_ (dyn StdError + 'static)| (*error).source());
    if causes.any(|error| error.is::<NoHandshake>()) {
        return Some(TlsError::none(&url, SCHEMES));
    }
    certificates.explain(error, &url, SCHEMES)
}
