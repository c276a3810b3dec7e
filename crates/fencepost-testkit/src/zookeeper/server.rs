//! One ZooKeeper server.

use super::config::Config;
use super::look::serves;
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Server};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A running server that stands alone.
pub struct ZooKeeper(Server);

impl ZooKeeper {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// It does not start; the error holds the end of its log.
    pub fn start(config: &Config) -> io::Result<ZooKeeper> {
        let config = config.clone();
        let mut plan = Plan::new("zookeeper", move |port, dir| command(&config, port, dir));
        plan.ready = Box::new(|port, _| serves(SocketAddr::from(([127, 0, 0, 1], port))));
        plan.patience = Duration::from_secs(60);
        Server::start(plan).map(ZooKeeper)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Its URL: `zookeeper://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Its URL by another address, such as a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("zookeeper://{address}")
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        self.0.log()
    }
}

fn command(config: &Config, port: u16, dir: &Path) -> Command {
    let file = dir.join("zoo.cfg");
    std::fs::write(&file, config.file(port, dir, &[])).expect("the server's folder can be written");
    config.command("org.apache.zookeeper.server.ZooKeeperServerMain", &file)
}

impl Faults for ZooKeeper {
    fn kill(&mut self) -> Result<(), Fault> {
        self.0.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.0.restart()
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.0.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.0.cont()
    }
}
