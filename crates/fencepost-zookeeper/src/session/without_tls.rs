//! A build without TLS. A URL that asks for it was refused, so there is no value of [`Tls`].

use std::convert::Infallible;
use std::time::Duration;

use fencepost_core::Result;
use fencepost_tls::TlsError;
use zookeeper_client as zk;

pub(crate) struct Tls(Infallible);

impl Tls {
    pub(crate) fn read(_: &fencepost_tls::Tls, _timeout: Duration) -> Result<Tls> {
        unreachable!("the URL was refused")
    }

    pub(crate) async fn connect(
        &self,
        _: zk::Connector,
        _hosts: &str,
    ) -> std::result::Result<zk::Client, zk::Error> {
        match self.0 {}
    }

    pub(crate) fn refresh(&self) {
        match self.0 {}
    }

    pub(crate) async fn examine(&self, _servers: &[(String, u16)]) -> Vec<TlsError> {
        match self.0 {}
    }

    pub(crate) async fn srvr(&self, _host: &str, _port: u16) -> std::result::Result<String, TlsError> {
        match self.0 {}
    }
}
