//! A build without TLS. A URL that asks for it was refused, so there is no value of [`Security`].

use std::fmt::Display;
use std::io;

use fencepost_core::Error;
use fencepost_tls::Tls;
use tokio::net::TcpStream;

#[derive(Clone)]
pub(crate) enum Security {}

impl Security {
    pub(crate) fn new(_: &Tls) -> Result<Security, Error> {
        unreachable!("the URL was refused")
    }

    pub(crate) async fn wrap(&self, _host: &str, _stream: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }

    pub(crate) fn unanswered(&self, _address: &dyn Display) -> Option<Error> {
        match *self {}
    }

    pub(crate) fn failure(&self, _: &(dyn std::error::Error + 'static), _: &dyn Display) -> Option<Error> {
        match *self {}
    }
}
