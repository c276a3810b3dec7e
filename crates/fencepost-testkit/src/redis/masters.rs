//! Independent masters.

use super::{Config, Redis};
use std::io;

/// Servers that do not know each other.
pub struct Masters {
    nodes: Vec<Redis>,
}

impl Masters {
    /// Starts `count` servers.
    ///
    /// # Errors
    /// Returns an error if one of them does not start.
    pub fn start(count: usize, config: &Config) -> io::Result<Masters> {
        Ok(Masters { nodes: (0..count).map(|_| Redis::start(config)).collect::<io::Result<_>>()? })
    }

    /// Returns the URL of a quorum of them: `redlock:URL,URL…`.
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(Redis::url).collect();
        format!("redlock:{}", urls.join(","))
    }

    /// Returns the servers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns a server, for its hooks.
    pub fn node(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index]
    }
}
