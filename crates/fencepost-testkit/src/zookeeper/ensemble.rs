//! An ensemble of three servers.

use super::config::Config;
use super::look::{leads, serves};
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Proxy, Server, free_port};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long an election may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three servers, each behind a proxy. [`kill`](Faults::kill) and [`stop`](Faults::stop) hit the leader. The
/// hooks of the network hit all three.
pub struct Ensemble {
    nodes: Vec<Node>,
    /// The server that was killed.
    killed: Option<usize>,
    stopped: Option<usize>,
}

struct Node {
    server: Server,
    proxy: Proxy,
}

impl Ensemble {
    /// Starts an ensemble and waits until it has a leader.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn start(config: &Config) -> io::Result<Ensemble> {
        let mut members = Vec::new();
        for id in 1..=3 {
            members.push(format!("server.{id}=127.0.0.1:{}:{}", free_port()?, free_port()?));
        }
        let nodes = (1..=3).map(|id| Node::start(config, id, &members)).collect::<io::Result<Vec<_>>>()?;
        let ensemble = Ensemble { nodes, killed: None, stopped: None };
        ensemble.settled()?;
        Ok(ensemble)
    }

    /// Returns its URL through the proxies.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.proxy.address().to_string()).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// Returns the servers' own addresses, past the proxies.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.server.address()).collect()
    }

    /// Returns the proxy in front of a server.
    pub fn proxy(&mut self, index: usize) -> &mut Proxy {
        &mut self.nodes[index].proxy
    }

    /// Returns a server, for its hooks.
    pub fn node(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index].server
    }

    /// Returns the index of the leader.
    ///
    /// # Errors
    /// Returns an error if there is no leader within 60 s (`PATIENCE`).
    pub fn leader(&self) -> io::Result<usize> {
        self.eventually("no leader", || {
            self.running().find(|(_, address)| leads(*address)).map(|(index, _)| index)
        })
    }

    /// Waits until all servers that run serve requests.
    ///
    /// # Errors
    /// Returns an error if that takes longer than 60 s (`PATIENCE`).
    pub fn settled(&self) -> io::Result<()> {
        self.eventually("not all servers serve", || {
            self.running().all(|(_, address)| serves(address)).then_some(())
        })
    }

    fn running(&self) -> impl Iterator<Item = (usize, SocketAddr)> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(index, node)| node.server.pid().is_some() && self.stopped != Some(*index))
            .map(|(index, node)| (index, node.server.address()))
    }

    fn eventually<T>(&self, what: &str, mut is: impl FnMut() -> Option<T>) -> io::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = is() {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                let logs: Vec<_> = self.nodes.iter().map(|node| node.server.log()).collect();
                let text = format!("{what} within {PATIENCE:?}:\n{}", logs.join("\n"));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Node {
    fn start(config: &Config, id: usize, members: &[String]) -> io::Result<Node> {
        let (config, members) = (config.clone(), members.to_vec());
        // Ready when it accepts connections: it serves requests only when the others run.
        let mut plan = Plan::new("zookeeper", move |port, dir| command(&config, id, port, dir, &members));
        plan.patience = PATIENCE;
        let server = Server::start(plan)?;
        let proxy = Proxy::start(server.address())?;
        Ok(Node { server, proxy })
    }
}

fn command(config: &Config, id: usize, port: u16, dir: &Path, members: &[String]) -> Command {
    let file = dir.join("zoo.cfg");
    let written = std::fs::create_dir_all(dir.join("data"))
        .and_then(|()| std::fs::write(dir.join("data/myid"), id.to_string()))
        .and_then(|()| std::fs::write(&file, config.file(port, dir, members)));
    written.expect("the server's folder can be written");
    config.command("org.apache.zookeeper.server.quorum.QuorumPeerMain", &file)
}

impl Faults for Ensemble {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        let leader = self.leader()?;
        self.killed = Some(leader);
        self.nodes[leader].server.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        if let Some(index) = self.killed.take() {
            self.nodes[index].server.restart()?;
        }
        Ok(self.settled()?)
    }

    fn stop(&mut self) -> Result<(), Fault> {
        let leader = self.leader()?;
        self.stopped = Some(leader);
        self.nodes[leader].server.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.stopped.take().map_or(Ok(()), |index| self.nodes[index].server.cont())
    }

    fn cut(&mut self) -> Result<(), Fault> {
        self.nodes.iter_mut().try_for_each(|node| node.proxy.cut())
    }

    fn refuse(&mut self) -> Result<(), Fault> {
        self.nodes.iter_mut().try_for_each(|node| node.proxy.refuse())
    }

    fn silence(&mut self) -> Result<(), Fault> {
        self.nodes.iter_mut().try_for_each(|node| node.proxy.silence())
    }

    fn delay(&mut self, by: Duration) -> Result<(), Fault> {
        self.nodes.iter_mut().try_for_each(|node| node.proxy.delay(by))
    }

    fn mend(&mut self) -> Result<(), Fault> {
        self.nodes.iter_mut().try_for_each(|node| node.proxy.mend())
    }
}
