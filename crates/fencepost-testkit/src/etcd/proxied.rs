//! One server behind a proxy.

use super::{Config, Etcd, Look};
use crate::server::{self, Standalone};
use std::io;
use std::net::SocketAddr;

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub type Proxied = server::Proxied<Etcd>;

impl Proxied {
    /// Returns an operator's tool, past the proxy.
    pub fn look(&self) -> Look {
        self.with(Etcd::look)
    }

    /// Returns the number of watches at the server.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub fn watches(&self) -> io::Result<u64> {
        self.with(Etcd::watches)
    }
}

impl Standalone for Etcd {
    type Config = Config;

    fn start(config: &Config) -> io::Result<Etcd> {
        Etcd::start(config)
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        self.url_at(address)
    }
}
