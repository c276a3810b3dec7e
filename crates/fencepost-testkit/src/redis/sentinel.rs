//! A master, its replica and the sentinels that watch them.

use super::network::{Network, network_faults};
use super::{Config, Look, Redis, eventually, refused};
use crate::faults::{Fault, Faults};
use std::io;

/// What the sentinels call the master.
const NAME: &str = "locks";

/// Two servers, one of them the master, and sentinels that replace it about a second after it has gone.
pub struct Sentinel {
    nodes: [Redis; 2],
    sentinels: Vec<Redis>,
    network: Network,
}

impl Sentinel {
    /// Starts the servers and so many sentinels (a majority decides), and waits until all know each other.
    ///
    /// # Errors
    /// One of them does not start, or they do not find each other.
    pub fn start(sentinels: usize, config: &Config) -> io::Result<Sentinel> {
        Sentinel::launch(sentinels, config, |_| Ok(Network::default()))
    }

    /// Starts one whose servers all, but for the test, find by a network that can be cut, silenced and slowed down.
    ///
    /// # Errors
    /// As of [`start`](Sentinel::start).
    pub fn proxied(sentinels: usize, config: &Config) -> io::Result<Sentinel> {
        Sentinel::launch(sentinels, config, Network::before)
    }

    fn launch(
        sentinels: usize,
        config: &Config,
        network: impl FnOnce(&[Redis]) -> io::Result<Network>,
    ) -> io::Result<Sentinel> {
        let nodes = [Redis::start(config)?, Redis::start(config)?];
        let network = network(&nodes)?;
        for (number, node) in nodes.iter().enumerate() {
            let mut look = node.try_look()?;
            let port = network.port(number, node).to_string();
            look.try_ask::<()>(&["CONFIG", "SET", "replica-announce-ip", "127.0.0.1"]).map_err(refused)?;
            look.try_ask::<()>(&["CONFIG", "SET", "replica-announce-port", &port]).map_err(refused)?;
        }
        let [master, replica] = &nodes;
        let port = network.port(0, master);
        replica.try_look()?.try_ask::<()>(&["REPLICAOF", "127.0.0.1", &port.to_string()]).map_err(refused)?;
        let mut link = replica.try_look()?;
        eventually("the replica follows its master", || link.info("master_link_status") == "up")?;
        // Nothing is streamed to it before its first word, up to a second after it has said that its link is up.
        let mut write = master.try_look()?;
        write.try_ask::<()>(&["SET", "mark", "1", "PX", "1"]).map_err(refused)?;
        eventually("the replica acknowledges", || {
            write.try_ask(&["WAIT", "1", "1000"]).is_ok_and(|n: u32| n == 1)
        })?;
        let mut watching = Config::new()
            .line(format!("sentinel monitor {NAME} 127.0.0.1 {port} {}", sentinels / 2 + 1))
            .line(format!("sentinel down-after-milliseconds {NAME} 1000"))
            .line(format!("sentinel failover-timeout {NAME} 4000"));
        if let Some(password) = &config.password {
            watching = watching.line(format!("sentinel auth-pass {NAME} {password}"));
        }
        let start = || Redis::launch("sentinel", watching.clone(), &["--sentinel"]);
        let sentinels = (0..sentinels).map(|_| start()).collect::<io::Result<Vec<_>>>()?;
        let deployment = Sentinel { nodes, sentinels, network };
        for sentinel in &deployment.sentinels {
            let mut look = sentinel.try_look()?;
            // By default it asks for news every ten seconds, and does nothing for thirty when it stood still for two, as on a
            // busy machine it may: too slow for a test.
            let hurry = [
                ["INFO-PERIOD", "200", "PUBLISH-PERIOD", "200"],
                ["TILT-TRIGGER", "10000", "TILT-PERIOD", "1000"],
            ];
            let hurry = [&["SENTINEL", "DEBUG"], &*hurry.concat()].concat();
            look.try_ask::<()>(&hurry).map_err(refused)?;
            let others = (deployment.sentinels.len() - 1).to_string();
            eventually("the sentinels know the replica and each other", || {
                let mut known = |field| state(&mut look, "MASTER", field).unwrap_or_default();
                known("num-slaves") == "1"
                    && known("num-other-sentinels") == others
                    && known("flags") == "master"
            })?;
        }
        Ok(deployment)
    }

    /// The URL: `redis+sentinel://HOST:PORT,HOST:PORT/locks`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{}{}/{NAME}", self.nodes[0].credentials(), hosts.join(","))
    }

    /// The server that the sentinels say is the master.
    ///
    /// # Panics
    /// No sentinel answers.
    pub fn master(&self) -> &Redis {
        &self.nodes[self.master_index()]
    }

    /// The other one.
    ///
    /// # Panics
    /// No sentinel answers.
    pub fn replica(&self) -> &Redis {
        &self.nodes[1 - self.master_index()]
    }

    /// The master, to trouble it.
    ///
    /// # Panics
    /// No sentinel answers.
    pub fn master_mut(&mut self) -> &mut Redis {
        let index = self.master_index();
        &mut self.nodes[index]
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    fn master_index(&self) -> usize {
        let mut look = self.sentinels[0].look();
        let [_, port]: [String; 2] = look.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        let ports = self.nodes.iter().enumerate().map(|(number, node)| self.network.port(number, node));
        let index = ports.map(|port| port.to_string()).position(|known| known == port);
        index.expect("the master is one of ours")
    }

    /// Keeps the replica from its master: it falls behind from now on, and is ready to be promoted all the same.
    ///
    /// # Errors
    /// One of them does not answer.
    pub fn cut_replica(&self) -> io::Result<()> {
        let mut replica = self.replica().try_look()?;
        // A replica that gives a password where none is asked for is refused. Stopping it would not do: what was sent to it
        // waits in its socket and is applied before it is promoted.
        replica.try_ask::<()>(&["CONFIG", "SET", "masterauth", "not the password"]).map_err(refused)?;
        let mut master = self.master().try_look()?;
        master.try_ask::<u64>(&["CLIENT", "KILL", "TYPE", "replica"]).map_err(refused)?;
        eventually("the replica has lost its master", || replica.info("master_link_status") == "down")
    }

    /// Kills the master and waits until the sentinels have put the replica in its place.
    ///
    /// # Errors
    /// It cannot be killed, or nobody replaces it.
    pub fn fail_over(&mut self) -> Result<(), Fault> {
        let old = self.master_index();
        self.nodes[old].kill()?;
        self.switched(old)
    }

    /// Waits until all sentinels have another master than this one, and it takes writes.
    fn switched(&self, old: usize) -> Result<(), Fault> {
        let port = self.network.port(1 - old, &self.nodes[1 - old]).to_string();
        for sentinel in &self.sentinels {
            let mut look = sentinel.try_look()?;
            eventually("the sentinels have made the replica the master", || {
                let address: Option<[String; 2]> =
                    look.try_ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok();
                address.is_some_and(|address| address[1] == port)
            })?;
        }
        let new = &self.nodes[1 - old];
        Ok(eventually("the new master knows that it is one", || says(new, "role") == "master")?)
    }

    /// Starts the server again that was the master before, and waits until it follows the present one.
    ///
    /// # Errors
    /// It does not start, or does not follow.
    pub fn rejoin(&mut self) -> Result<(), Fault> {
        let master = self.master_index();
        let old = &mut self.nodes[1 - master];
        old.restart()?;
        // What `cut_replica` did to the present master while it was a replica does no harm to one that follows nobody.
        eventually("the old master follows the new one", || says(old, "master_link_status") == "up")?;
        for sentinel in &self.sentinels {
            let mut look = sentinel.try_look()?;
            eventually("the sentinels see both", || {
                state(&mut look, "SLAVES", "flags").is_some_and(|flags| flags == "slave")
            })?;
        }
        Ok(())
    }
}

impl Sentinel {
    /// How long a master may be silent before it is replaced.
    fn patience(&self, ms: u32) -> Result<(), Fault> {
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &ms.to_string()];
            sentinel.try_look()?.try_ask::<()>(&words).map_err(refused)?;
        }
        Ok(())
    }

    /// A bad network is no reason to replace a master: what a replica lacks then is another story.
    fn hold_on(&self) -> Result<(), Fault> {
        self.patience(600_000)
    }
}

/// Killed is the master, when its replica has all that it has; restarted it is when the sentinels have replaced it.
impl Faults for Sentinel {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        self.patience(1_000)?;
        let mut master = self.master().try_look()?;
        master.try_ask::<()>(&["SET", "mark", "1", "PX", "1"]).map_err(refused)?;
        eventually("the replica has it all", || {
            master.try_ask(&["WAIT", "1", "1000"]).is_ok_and(|count: u32| count == 1)
        })?;
        self.master_mut().kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        let old = self.nodes.iter().position(|node| node.pid().is_none());
        self.switched(old.ok_or_else(|| io::Error::other("both servers run"))?)?;
        self.rejoin()
    }

    network_faults!();
}

/// A field of what a server says of itself, on a fresh connection: a sentinel that gives a server another role ends all that
/// there are.
fn says(server: &Redis, field: &str) -> String {
    server.try_look().map(|mut look| look.info(field)).unwrap_or_default()
}

/// A field of what a sentinel knows of the master, or of its (only) replica.
fn state(look: &mut Look, of: &str, field: &str) -> Option<String> {
    let fields: Vec<String> = match of {
        "SLAVES" => {
            let all: Vec<Vec<String>> = look.try_ask(&["SENTINEL", of, NAME]).ok()?;
            all.into_iter().next()?
        }
        _ => look.try_ask(&["SENTINEL", of, NAME]).ok()?,
    };
    let at = fields.iter().step_by(2).position(|name| name == field)?;
    fields.get(2 * at + 1).cloned()
}
