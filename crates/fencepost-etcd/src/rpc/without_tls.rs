//! A build without TLS. There is no value of [`Tls`].

use std::convert::Infallible;

use fencepost_core::Runtime;
use fencepost_tls::Tls;
use tonic::transport::Endpoint;

use crate::error::Failure;

pub(crate) fn client_config(tls: &Tls) -> Result<Infallible, Failure> {
    match *tls {}
}

pub(crate) fn configure(_: Endpoint, config: &Infallible) -> Result<Endpoint, tonic::transport::Error> {
    match *config {}
}

pub(crate) async fn refusal(tls: &Tls, _member: &str, _runtime: &Runtime) -> Option<Failure> {
    match *tls {}
}
