//! Three members.

use super::server::is_healthy;
use super::{Config, Look};
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Proxy, Server, free_port};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;

/// How long an election may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster of three members, each behind a proxy of its own. Clones share the cluster.
///
/// A hook that ends or stops a process hits the leader. A hook of the network hits all members.
#[derive(Clone)]
pub struct Cluster(Arc<Mutex<Inner>>);

struct Inner {
    members: Vec<Member>,
    /// The member that the last hook killed or stopped.
    down: Option<usize>,
}

struct Member {
    server: Server,
    proxy: Proxy,
}

impl Cluster {
    /// Starts three members and waits until all of them accept writes.
    ///
    /// # Errors
    /// Returns an error if a member does not start, or if they elect no leader.
    pub fn start(config: &Config) -> io::Result<Cluster> {
        let peers: Vec<u16> = (0..3).map(|_| free_port()).collect::<io::Result<_>>()?;
        let told: Vec<String> =
            peers.iter().enumerate().map(|(n, peer)| format!("m{n}=http://127.0.0.1:{peer}")).collect();
        let told = told.join(",");
        let mut members = Vec::new();
        for (number, peer) in peers.into_iter().enumerate() {
            let (config, told) = (config.clone(), told.clone());
            // It accepts connections before it has found the others.
            let home = config.home();
            let mut plan = Plan::new("etcd", move |port, dir| {
                config.command(&format!("m{number}"), port, peer, &told, dir)
            });
            plan.home = home;
            let server = Server::start(plan)?;
            let proxy = Proxy::start(server.address())?;
            members.push(Member { server, proxy });
        }
        let cluster = Cluster(Arc::new(Mutex::new(Inner { members, down: None })));
        cluster.settle()?;
        Ok(cluster)
    }

    /// Returns its URL through the proxies.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.inner().members.iter().map(|m| m.proxy.address().to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Returns its URL past the proxies.
    pub fn direct_url(&self) -> String {
        let hosts: Vec<_> = self.inner().members.iter().map(|m| m.server.address().to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Returns the addresses of the members, past the proxies.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.inner().members.iter().map(|member| member.server.address()).collect()
    }

    /// Returns the URL of one member, through its proxy.
    pub fn url_of(&self, member: usize) -> String {
        format!("etcd://{}", self.inner().members[member].proxy.address())
    }

    /// Returns an operator's tool, past the proxies.
    pub fn look(&self) -> Look {
        let inner = self.inner();
        let hosts: Vec<_> = inner.members.iter().map(|m| format!("http://{}", m.server.address())).collect();
        Look::at(hosts.join(","), None)
    }

    /// Returns the index of the leader.
    ///
    /// # Errors
    /// Returns an error if there is no leader.
    pub fn leader(&self) -> io::Result<usize> {
        self.inner().leader()
    }

    /// Waits until every member that runs accepts writes.
    ///
    /// # Errors
    /// Returns an error if that takes too long.
    pub fn settle(&self) -> io::Result<()> {
        let ports: Vec<u16> = {
            let inner = self.inner();
            inner.members.iter().filter(|m| m.server.pid().is_some()).map(|m| m.server.port()).collect()
        };
        let deadline = Instant::now() + PATIENCE;
        while !ports.iter().all(|port| is_healthy(*port)) {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the members do not agree on a leader"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Makes a fault in one member: in its process, or in its clients' network.
    ///
    /// # Errors
    /// Returns the error of the hook.
    pub fn trouble(
        &self,
        member: usize,
        what: impl FnOnce(&mut dyn Faults, &mut dyn Faults) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut inner = self.inner();
        let Member { server, proxy } = &mut inner.members[member];
        what(server, proxy)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Inner {
    fn leader(&self) -> io::Result<usize> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            for (number, member) in self.members.iter().enumerate() {
                if member.server.pid().is_none() {
                    continue;
                }
                let look = Look::at(format!("http://{}", member.server.address()), None);
                // The same reply has the member's own id and the leader's.
                let text = look.try_run(&["--command-timeout=1s", "endpoint", "status", "-w", "json"]);
                let ids = text.ok().and_then(|text| {
                    let number = |key: &str| {
                        let rest = &text[text.find(key)? + key.len()..];
                        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                        digits.parse::<u64>().ok()
                    };
                    Some((number("\"member_id\":")?, number("\"leader\":")?))
                });
                if ids.is_some_and(|(own, leader)| own == leader) {
                    return Ok(number);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "nobody leads"))
    }

    fn all(&mut self, change: impl Fn(&mut Proxy) -> Result<(), Fault>) -> Result<(), Fault> {
        self.members.iter_mut().try_for_each(|member| change(&mut member.proxy))
    }

    fn down(&mut self) -> Result<&mut Server, Fault> {
        let number = self.down.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "nobody is down"))?;
        Ok(&mut self.members[number].server)
    }
}

impl Faults for Cluster {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        let mut inner = self.inner();
        let leader = inner.leader()?;
        inner.down = Some(leader);
        inner.members[leader].server.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.inner().down()?.restart()?;
        Ok(self.settle()?)
    }

    fn stop(&mut self) -> Result<(), Fault> {
        let mut inner = self.inner();
        let leader = inner.leader()?;
        inner.down = Some(leader);
        inner.members[leader].server.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.inner().down()?.cont()
    }

    fn cut(&mut self) -> Result<(), Fault> {
        self.inner().all(|proxy| proxy.cut())
    }

    fn refuse(&mut self) -> Result<(), Fault> {
        self.inner().all(|proxy| proxy.refuse())
    }

    fn silence(&mut self) -> Result<(), Fault> {
        self.inner().all(|proxy| proxy.silence())
    }

    fn delay(&mut self, by: Duration) -> Result<(), Fault> {
        self.inner().all(|proxy| proxy.delay(by))
    }

    fn mend(&mut self) -> Result<(), Fault> {
        self.inner().all(|proxy| proxy.mend())
    }
}
