//! One server behind a proxy.

use super::{Config, Look, Redis};
use crate::server::{self, Standalone};
use std::io;
use std::net::SocketAddr;

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub type Proxied = server::Proxied<Redis>;

impl Proxied {
    /// Returns a connection to inspect the server, past the proxy.
    ///
    /// # Panics
    /// Panics if it does not answer.
    pub fn look(&self) -> Look {
        self.with(Redis::look)
    }
}

impl Standalone for Redis {
    type Config = Config;

    fn start(config: &Config) -> io::Result<Redis> {
        Redis::start(config)
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        self.url_at(address)
    }
}
