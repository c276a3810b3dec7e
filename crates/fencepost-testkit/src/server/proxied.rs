//! One server behind a proxy.

use super::Proxy;
use crate::faults::{Fault, Faults};
use fencepost_core::sync::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// A server without peers: one proxy in front of it is all of its network.
pub trait Standalone: Faults + Sized {
    /// Its configuration.
    type Config;

    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    fn start(config: &Self::Config) -> io::Result<Self>;

    /// Returns its address.
    fn address(&self) -> SocketAddr;

    /// Returns the address to which its clients connect.
    fn entrance(&self) -> SocketAddr {
        self.address()
    }

    /// Returns its URL with this address, which may be a proxy's.
    fn url_at(&self, address: SocketAddr) -> String;
}

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub struct Proxied<S>(Arc<Mutex<Inner<S>>>);

struct Inner<S> {
    server: S,
    proxy: Proxy,
}

impl<S: Standalone> Proxied<S> {
    /// Starts a server and a proxy in front of it.
    ///
    /// # Errors
    /// Returns an error if one of them does not start.
    pub fn start(config: &S::Config) -> io::Result<Proxied<S>> {
        Proxied::before(S::start(config)?)
    }

    /// Starts a proxy in front of a server.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn before(server: S) -> io::Result<Proxied<S>> {
        let proxy = Proxy::start(server.entrance())?;
        Ok(Proxied(Arc::new(Mutex::new(Inner { server, proxy }))))
    }

    /// Returns the server's URL through the proxy.
    pub fn url(&self) -> String {
        let inner = self.inner();
        inner.server.url_at(inner.proxy.address())
    }

    /// Returns the server's own URL, past the proxy.
    pub fn direct_url(&self) -> String {
        self.with(|server| server.url_at(server.entrance()))
    }

    /// Returns the server's own address, past the proxy.
    pub fn address(&self) -> SocketAddr {
        self.with(S::address)
    }
}

impl<S> Proxied<S> {
    /// Calls `ask` with the server.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(&S) -> T) -> T {
        ask(&self.inner().server)
    }

    fn inner(&self) -> MutexGuard<'_, Inner<S>> {
        self.0.lock()
    }
}

impl<S> Clone for Proxied<S> {
    fn clone(&self) -> Proxied<S> {
        Proxied(self.0.clone())
    }
}

impl<S: Faults> Faults for Proxied<S> {
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

    fn refuse(&mut self) -> Result<(), Fault> {
        self.inner().proxy.refuse()
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

    fn jump(&mut self, seconds: i64) -> Result<(), Fault> {
        self.inner().server.jump(seconds)
    }
}
