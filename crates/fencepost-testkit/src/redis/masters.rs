//! Independent masters.

use super::{Config, Redis};
use std::io;

/// Servers that know nothing of each other.
pub struct Masters {
    nodes: Vec<Redis>,
}

impl Masters {
    /// Starts so many.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(count: usize, config: &Config) -> io::Result<Masters> {
        Ok(Masters { nodes: (0..count).map(|_| Redis::start(config)).collect::<io::Result<_>>()? })
    }

    /// The URL of a quorum of them: `redlock:URL,URL…`.
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(Redis::url).collect();
        format!("redlock:{}", urls.join(","))
    }

    /// The servers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// A server, to trouble it.
    pub fn node(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index]
    }
}
