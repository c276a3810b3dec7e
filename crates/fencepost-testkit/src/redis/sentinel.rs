//! A master, its replica and the sentinels that watch them.

use super::config::is_redis_6;
use super::network::{Network, network_faults};
use super::{Config, Look, Redis, eventually, refused, within};
use crate::faults::{Fault, Faults};
use std::io;
use std::time::Duration;

/// The sentinels' name of the master.
const NAME: &str = "locks";
/// How long a master may be silent before the sentinels replace it, in milliseconds: while they must not, and once they
/// must.
const NEVER: u32 = 600_000;
const SOON: u32 = 1_000;
/// The time in which the sentinels make a former master a replica, on a machine that is not busy.
const REJOIN: Duration = Duration::from_secs(20);

/// Two servers, one of them the master, and sentinels.
///
/// They replace the master 1 s after this deployment killed it, and for no other reason: on a busy machine a master that
/// runs may be silent for longer, and a failover that no test asked for loses grants.
pub struct Sentinel {
    nodes: [Redis; 2],
    sentinels: Vec<Redis>,
    network: Network,
}

impl Sentinel {
    /// Starts the servers and `sentinels` sentinels (a majority decides), and waits until all know each
    /// other.
    ///
    /// # Errors
    /// Returns an error if one of them does not start, or if they do not find each other.
    pub fn start(sentinels: usize, config: &Config) -> io::Result<Sentinel> {
        Sentinel::launch(sentinels, config, |_| Ok(Network::default()))
    }

    /// Starts a deployment with a proxy in front of each server. All but the test connect through the
    /// proxies.
    ///
    /// # Errors
    /// Returns the errors of [`start`](Sentinel::start).
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
            // A server that restarts must announce the proxy's port again. With two addresses of one server, a sentinel makes
            // it a replica of itself.
            look.try_ask::<()>(&["CONFIG", "REWRITE"]).map_err(refused)?;
        }
        let [master, replica] = &nodes;
        let port = network.port(0, master);
        replica.try_look()?.try_ask::<()>(&["REPLICAOF", "127.0.0.1", &port.to_string()]).map_err(refused)?;
        let mut link = replica.try_look()?;
        eventually("the replica follows its master", || link.info("master_link_status") == "up")?;
        // A replica gets no writes before its first acknowledgement, which comes up to 1 s after its link is
        // up.
        let mut write = master.try_look()?;
        write.try_ask::<()>(&["SET", "mark", "1", "PX", "1"]).map_err(refused)?;
        eventually("the replica acknowledges", || {
            write.try_ask(&["WAIT", "1", "1000"]).is_ok_and(|n: u32| n == 1)
        })?;
        let mut watching = Config::new()
            .line(format!("sentinel monitor {NAME} 127.0.0.1 {port} {}", sentinels / 2 + 1))
            .line(format!("sentinel down-after-milliseconds {NAME} {NEVER}"))
            .line(format!("sentinel failover-timeout {NAME} 4000"));
        if let Some(password) = &config.password {
            watching = watching.line(format!("sentinel auth-pass {NAME} {password}"));
        }
        let start = || Redis::launch("sentinel", watching.clone(), &["--sentinel"]);
        let sentinels = (0..sentinels).map(|_| start()).collect::<io::Result<Vec<_>>>()?;
        let deployment = Sentinel { nodes, sentinels, network };
        for sentinel in &deployment.sentinels {
            let mut look = sentinel.try_look()?;
            // By default a sentinel asks for news every 10 s. After it stalled for 2 s it does nothing for 30
            // s. Both are too slow for a test on a busy machine. A sentinel of Redis 6 always does that.
            let hurry = [
                ["INFO-PERIOD", "200", "PUBLISH-PERIOD", "200"],
                ["TILT-TRIGGER", "10000", "TILT-PERIOD", "1000"],
            ];
            let hurry = [&["SENTINEL", "DEBUG"], &*hurry.concat()].concat();
            if !is_redis_6() {
                look.try_ask::<()>(&hurry).map_err(refused)?;
            }
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

    /// Returns the URL: `redis+sentinel://HOST:PORT,HOST:PORT/locks`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{}{}/{NAME}", self.nodes[0].credentials(), hosts.join(","))
    }

    /// Starts one more sentinel, which names the server at `port` as the master, as a sentinel does that missed a
    /// failover. It keeps to this for 10 minutes.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn start_stale(&self, port: u16) -> io::Result<Redis> {
        let watching = Config::new()
            .line(format!("sentinel monitor {NAME} 127.0.0.1 {port} 1"))
            .line(format!("sentinel down-after-milliseconds {NAME} {NEVER}"));
        Redis::launch("sentinel", watching, &["--sentinel"])
    }

    /// Returns the server that the sentinels name as the master.
    ///
    /// # Panics
    /// Panics if no sentinel answers.
    pub fn master(&self) -> &Redis {
        &self.nodes[self.master_index()]
    }

    /// Returns the other server.
    ///
    /// # Panics
    /// Panics if no sentinel answers.
    pub fn replica(&self) -> &Redis {
        &self.nodes[1 - self.master_index()]
    }

    /// Returns the master, for its hooks.
    ///
    /// # Panics
    /// Panics if no sentinel answers.
    pub fn master_mut(&mut self) -> &mut Redis {
        let index = self.master_index();
        &mut self.nodes[index]
    }

    /// Returns the sentinels.
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

    /// Disconnects the replica from its master. It falls behind from now on, and can still be promoted.
    ///
    /// # Errors
    /// Returns an error if one of them does not answer.
    pub fn cut_replica(&self) -> io::Result<()> {
        let mut replica = self.replica().try_look()?;
        // A master without a password refuses a replica that sends one. SIGSTOP would not do: the writes that
        // wait in the replica's socket would be applied before its promotion.
        replica.try_ask::<()>(&["CONFIG", "SET", "masterauth", "not the password"]).map_err(refused)?;
        let mut master = self.master().try_look()?;
        master.try_ask::<u64>(&["CLIENT", "KILL", "TYPE", "replica"]).map_err(refused)?;
        eventually("the replica has lost its master", || replica.info("master_link_status") == "down")
    }

    /// Kills the master and waits until the sentinels have promoted the replica.
    ///
    /// # Errors
    /// Returns an error if it cannot be killed, or if it is not replaced.
    pub fn fail_over(&mut self) -> Result<(), Fault> {
        let old = self.master_index();
        self.nodes[old].kill()?;
        self.switched(old)
    }

    /// Has the sentinels replace this dead master. Waits until all have another one, and that accepts writes.
    fn switched(&self, old: usize) -> Result<(), Fault> {
        let port = self.network.port(1 - old, &self.nodes[1 - old]).to_string();
        self.patience(SOON)?;
        for sentinel in &self.sentinels {
            let mut look = sentinel.try_look()?;
            eventually("the sentinels have made the replica the master", || {
                let address: Option<[String; 2]> =
                    look.try_ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok();
                address.is_some_and(|address| address[1] == port)
            })?;
        }
        // The new master, too, may seem down to a busy sentinel.
        self.patience(NEVER)?;
        let new = &self.nodes[1 - old];
        Ok(eventually("the new master knows that it is one", || says(new, "role") == "master")?)
    }

    /// Restarts the former master, and waits until it follows the present one.
    ///
    /// # Errors
    /// Returns an error if it does not start, or does not follow.
    pub fn rejoin(&mut self) -> Result<(), Fault> {
        let master = self.master_index();
        let port = self.network.port(master, &self.nodes[master]).to_string();
        let old = &mut self.nodes[1 - master];
        old.restart()?;
        // The wrong password that `cut_replica` set on the present master does no harm: a master follows no
        // server.
        let old = &*old;
        if !within(REJOIN, || says(old, "master_link_status") == "up") {
            // Now and then the sentinels of a busy machine leave the old master alone. An operator does the same by hand.
            old.try_look()?.try_ask::<()>(&["REPLICAOF", "127.0.0.1", &port]).map_err(refused)?;
            eventually("the old master follows the new one", || says(old, "master_link_status") == "up")?;
        }
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
    /// Sets how long a master may be silent before it is replaced, in milliseconds.
    fn patience(&self, ms: u32) -> Result<(), Fault> {
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &ms.to_string()];
            sentinel.try_look()?.try_ask::<()>(&words).map_err(refused)?;
        }
        Ok(())
    }
}

/// A kill ends the master once its replica has all its writes. A restart starts it after the sentinels have
/// replaced it.
impl Faults for Sentinel {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
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

/// Returns a field of a server's `INFO`, on a fresh connection: a sentinel that changes a server's role
/// closes its connections.
fn says(server: &Redis, field: &str) -> String {
    server.try_look().map(|mut look| look.info(field)).unwrap_or_default()
}

/// Returns a sentinel's field of the master, or of its (only) replica.
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
