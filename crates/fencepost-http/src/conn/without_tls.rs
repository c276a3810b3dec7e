//! A build without TLS. There is no value of [`Certificates`].

use std::error::Error as StdError;
use std::time::Duration;

use fencepost_tls::{Certificates, TlsError};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::conn::connector::BoxError;
use crate::error::Failure;

pub(crate) type Stream<T> = T;

pub(crate) fn plain(stream: TokioIo<TcpStream>) -> TokioIo<TcpStream> {
    stream
}

pub(crate) async fn connect(
    _: HttpConnector,
    certificates: &Certificates,
    _: Uri,
    _: Duration,
) -> Result<TokioIo<TcpStream>, BoxError> {
    match *certificates {}
}

pub(crate) fn explain(certificates: &Certificates, _: &(dyn StdError + 'static), _: &str) -> Option<Failure> {
    match *certificates {}
}

pub(crate) fn failure(trouble: TlsError) -> Failure {
    Failure::new(trouble.kind, trouble.message)
}
