//! One server behind a bad network.

use super::{Config, Etcd, Look};
use crate::faults::{Fault, Faults};
use crate::server::Proxy;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A server and the proxy in front of it, with all hooks. Clones are the same one.
#[derive(Clone)]
pub struct Proxied(Arc<Mutex<Inner>>);

struct Inner {
    server: Etcd,
    proxy: Proxy,
}

impl Proxied {
    /// Starts a server and a proxy in front of it.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(config: &Config) -> io::Result<Proxied> {
        let server = Etcd::start(config)?;
        let proxy = Proxy::start(server.address())?;
        Ok(Proxied(Arc::new(Mutex::new(Inner { server, proxy }))))
    }

    /// The server's URL by the proxy.
    pub fn url(&self) -> String {
        let inner = self.inner();
        inner.server.url_at(inner.proxy.address())
    }

    /// The server's own URL, past the proxy.
    pub fn direct_url(&self) -> String {
        self.inner().server.url()
    }

    /// An operator, past the proxy.
    pub fn look(&self) -> Look {
        self.inner().server.look()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Faults for Proxied {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        self.inner().server.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.inner().server.restart()
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.inner().server.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.inner().server.cont()
    }

    fn cut(&mut self) -> Result<(), Fault> {
        self.inner().proxy.cut()
    }

    fn silence(&mut self) -> Result<(), Fault> {
        self.inner().proxy.silence()
    }

    fn delay(&mut self, by: Duration) -> Result<(), Fault> {
        self.inner().proxy.delay(by)
    }

    fn mend(&mut self) -> Result<(), Fault> {
        self.inner().proxy.mend()
    }
}
