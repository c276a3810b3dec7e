//! One server behind a proxy.

use super::{Config, ZooKeeper};
use crate::server::{self, Standalone};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub type Proxied = server::Proxied<ZooKeeper>;

impl Proxied {
    /// Returns the certificate of a server with [`Config::tls`].
    pub fn certificate(&self) -> PathBuf {
        self.with(ZooKeeper::certificate)
    }
}

impl Standalone for ZooKeeper {
    type Config = Config;

    fn start(config: &Config) -> io::Result<ZooKeeper> {
        ZooKeeper::start(config)
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn entrance(&self) -> SocketAddr {
        self.entrance()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        self.url_at(address)
    }
}
