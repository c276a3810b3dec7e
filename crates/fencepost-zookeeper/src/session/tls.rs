//! TLS to the servers: what the driver needs for it, and connections of our own that tell why it fails.
//!
//! The driver speaks TLS itself, and tells no more of a failure than that no server could be had.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_io::Timer;
use async_net::TcpStream;
use fencepost_core::sync::Mutex;
use fencepost_core::{Error, ErrorKind, Result};
use fencepost_tls::{Certificates, Loaded, Schemes, TlsError};
use futures_rustls::TlsConnector;
use futures_util::future::{Either, join_all, select};
use zookeeper_client as zk;

use crate::config::shown;
use crate::error::ENGINE;
use crate::session::srvr::srvr;

const SCHEMES: Schemes = Schemes { plain: "zookeeper:", tls: "zookeepers:" };

pub(crate) struct Tls {
    certificates: Certificates,
    /// The driver's copy of the certificates. Each of its connections uses the current one.
    driver: zk::TlsDynamicCerts,
    /// The certificates that the driver has.
    copied: Mutex<Arc<Loaded>>,
    /// The most time that one connection takes.
    patience: Duration,
}

impl Tls {
    /// Connects the driver.
    pub(crate) async fn connect(
        &self,
        connector: zk::Connector,
        hosts: &str,
    ) -> std::result::Result<zk::Client, zk::Error> {
        self.refresh();
        let options = zk::TlsOptions::new().with_certs(self.driver.clone());
        connector.with_tls(options).secure_connect(hosts).await
    }

    /// Gives the driver the files of certificates if they have changed.
    pub(crate) fn refresh(&self) {
        let current = self.certificates.current();
        let mut copied = self.copied.lock();
        if Arc::ptr_eq(&current, &copied) {
            return;
        }
        match driver_certs(&self.certificates, &current) {
            Ok(certs) => {
                self.driver.update(certs);
                *copied = current;
            }
            Err(error) => {
                tracing::warn!(%error, cause = error.cause, "the driver keeps the earlier certificates")
            }
        }
    }

    /// Reads the files that the URL names. `timeout`: the most time that one request takes.
    ///
    /// # Errors
    /// A file is not as it should be.
    pub(crate) fn read(tls: &fencepost_tls::Tls, timeout: Duration) -> Result<Tls> {
        Tls::try_read(tls, timeout).map_err(|trouble| Error::from(trouble).on(ENGINE))
    }

    fn try_read(tls: &fencepost_tls::Tls, timeout: Duration) -> Result<Tls, TlsError> {
        let certificates = Certificates::read(tls)?;
        let copied = certificates.current();
        let driver = zk::TlsDynamicCerts::new(driver_certs(&certificates, &copied)?);
        // The driver uses the provider of the process.
        fencepost_tls::install_provider();
        let patience = (timeout / 2).max(Duration::from_secs(1));
        Ok(Tls { certificates, driver, copied: Mutex::new(copied), patience })
    }

    /// Connects to each server and returns what is wrong, where something is.
    pub(crate) async fn examine(&self, servers: &[(String, u16)]) -> Vec<TlsError> {
        let examined = servers.iter().map(|(host, port)| async move { self.srvr(host, *port).await.err() });
        join_all(examined).await.into_iter().flatten().collect()
    }

    /// Asks a server how it is.
    ///
    /// # Errors
    /// The server cannot be reached, does not speak TLS, or refuses this client.
    pub(crate) async fn srvr(&self, host: &str, port: u16) -> Result<String, TlsError> {
        let (address, until) = (shown(host, port), Instant::now() + self.patience);
        let unreachable = |error: &dyn std::fmt::Display| {
            let message = format!("{address} cannot be reached; does ZooKeeper run there?");
            TlsError::new(ErrorKind::Unreachable, message).because(error)
        };
        let no_tls = || TlsError::none(&address, SCHEMES);
        let of_tls = |error: &io::Error| self.certificates.explain(error, &address, SCHEMES);
        let stream = match before(until, TcpStream::connect((host, port))).await {
            Some(stream) => stream.map_err(|error| unreachable(&error))?,
            None => return Err(unreachable(&"it takes too long")),
        };
        let name = fencepost_tls::server_name(host).map_err(|error| unreachable(&error))?;
        let connector = TlsConnector::from(self.certificates.config());
        let stream = match before(until, connector.connect(name, stream)).await {
            Some(Ok(stream)) => stream,
            // A server without TLS takes the handshake for a request that is too long, and hangs up.
            Some(Err(error)) => return Err(of_tls(&error).unwrap_or_else(|| no_tls().because(&error))),
            None => return Err(no_tls()),
        };
        let silent = || {
            let message = format!(
                "{address} accepts TLS and does not answer as ZooKeeper; check that it runs, and read its log"
            );
            TlsError::new(ErrorKind::Unreachable, message)
        };
        match before(until, srvr(stream)).await {
            Some(Ok(text)) if text.is_empty() => Err(silent()),
            Some(Ok(text)) => Ok(text),
            // In TLS 1.3 a server refuses a client's certificate after the handshake.
            Some(Err(error)) => Err(of_tls(&error).unwrap_or_else(|| silent().because(&error))),
            None => Err(silent()),
        }
    }
}

/// Makes the driver's form of certificates.
fn driver_certs(certificates: &Certificates, loaded: &Loaded) -> Result<zk::TlsCerts, TlsError> {
    let pem = certificates.pem(loaded)?;
    let certs = || {
        let mut certs = zk::TlsCerts::builder().with_ca(zk::TlsCa::from_pem(&pem.authorities)?);
        if let Some((cert, key)) = &pem.identity {
            certs = certs.with_identity(zk::TlsIdentity::from_pem(cert, key)?);
        }
        certs.build()
    };
    certs().map_err(|error: zk::Error| {
        TlsError::new(ErrorKind::Configuration, "ZooKeeper's driver does not take the files for TLS")
            .because(&error)
    })
}

async fn before<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), Timer::at(until)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_that_says_nothing_is_given_up_with_the_reason() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("an address").port();
        let tls = fencepost_tls::Tls::default();
        let tls = Tls::read(&tls, Duration::from_millis(100)).expect("the system's authorities");
        let found = async_io::block_on(tls.examine(&[("127.0.0.1".to_owned(), port)]));
        let [trouble] = &found[..] else { panic!("{found:?}") };
        assert!(trouble.message.contains("does not answer in TLS"), "{trouble}");
        assert_eq!(trouble.kind, ErrorKind::Unreachable, "it may come");
    }
}
