//! One server behind a bad network.

use super::{Config, Etcd, Look};
use crate::server::{self, Standalone};
use std::io;
use std::net::SocketAddr;

/// A server and the proxy in front of it, with all hooks. Clones are the same one.
pub type Proxied = server::Proxied<Etcd>;

impl Proxied {
    /// An operator, past the proxy.
    pub fn look(&self) -> Look {
        self.with(Etcd::look)
    }

    /// How many watches stand at the server.
    ///
    /// # Errors
    /// It does not answer.
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
