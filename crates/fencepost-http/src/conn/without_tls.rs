//! A build without TLS. A URL that asks for it was refused, so these functions are not called.

use std::error::Error as StdError;
use std::time::Duration;

use fencepost_tls::{Certificates, TlsError};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::conn::connector::BoxError;

pub(crate) type Stream<T> = T;

pub(crate) fn plain(stream: TokioIo<TcpStream>) -> TokioIo<TcpStream> {
    stream
}

pub(crate) async fn connect(
    _: HttpConnector,
    _: &Certificates,
    _: Uri,
    _: Duration,
) -> Result<TokioIo<TcpStream>, BoxError> {
    unreachable!("the URL was refused")
}

pub(crate) fn explain(_: &Certificates, _: &(dyn StdError + 'static), _: &str) -> Option<TlsError> {
    unreachable!("the URL was refused")
}
