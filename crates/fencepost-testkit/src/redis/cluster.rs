//! A cluster of three masters with a replica each.

mod table;

use super::config::is_redis_6;
use super::network::{Network, network_faults};
use super::{Config, Look, Redis, eventually, refused};
use crate::faults::{Fault, Faults};
use crate::server::free_port;
use std::io;

/// The number of masters that share the slots.
const MASTERS: usize = 3;
/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Six servers. At the start, the first three are the masters.
///
/// A master is replaced once [`fail_over`](Cluster::fail_over) has killed it, after 5 s of silence or the configuration's
/// `cluster-node-timeout`, and for no other reason: on a busy machine a master that runs may be silent for longer, and a
/// failover that no test asked for loses grants.
pub struct Cluster {
    nodes: Vec<Redis>,
    network: Network,
}

impl Cluster {
    /// Starts a cluster and waits until every node reports that it works.
    ///
    /// # Errors
    /// Returns an error if a server does not start, or if they do not form a cluster.
    pub fn start(config: &Config) -> io::Result<Cluster> {
        Cluster::launch(config, |_| Ok(Network::default()))
    }

    /// Starts a cluster with a proxy in front of each node. The bus between the nodes does not pass through
    /// the proxies.
    ///
    /// # Errors
    /// Returns the errors of [`start`](Cluster::start).
    pub fn proxied(config: &Config) -> io::Result<Cluster> {
        Cluster::launch(config, Network::before)
    }

    fn launch(config: &Config, network: impl FnOnce(&[Redis]) -> io::Result<Network>) -> io::Result<Cluster> {
        let start = |number: usize| {
            let mut config = config
                .clone()
                .line("cluster-enabled yes")
                .standard("cluster-node-timeout 5000")
                .line("cluster-replica-no-failover yes")
                .line("cluster-announce-ip 127.0.0.1");
            // By default, and always on Redis 6, the port of the bus is 10,000 higher. Another test may have that.
            if !is_redis_6() {
                config = config.line(format!("cluster-port {}", free_port()?));
            }
            let node = Redis::start(&config)?;
            // The epochs must differ. Otherwise the nodes change them one by one, each time after an
            // election.
            node.try_look()?
                .try_ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])
                .map_err(refused)?;
            Ok(node)
        };
        let nodes: Vec<Redis> = (0..2 * MASTERS).map(start).collect::<io::Result<_>>()?;
        let network = network(&nodes)?;
        for (number, node) in nodes.iter().enumerate() {
            let port = network.port(number, node).to_string();
            let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
            node.try_look()?.try_ask::<()>(&announce).map_err(refused)?;
        }
        let cluster = Cluster { nodes, network };
        cluster.come_together()?;
        Ok(cluster)
    }

    fn come_together(&self) -> io::Result<()> {
        let mut looks = self.nodes.iter().map(Redis::try_look).collect::<io::Result<Vec<_>>>()?;
        for node in &self.nodes[1..] {
            let bus: Vec<String> =
                node.try_look()?.try_ask(&["CONFIG", "GET", "cluster-port"]).map_err(refused)?;
            let bus = bus.get(1).cloned().unwrap_or_else(|| (node.port() + 10_000).to_string());
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus];
            looks[0].try_ask::<()>(&meet).map_err(refused)?;
        }
        for look in &mut looks {
            eventually("the nodes know each other", || {
                let table = table::read(look);
                table.len() == 2 * MASTERS && table.iter().all(|node| !node.flags.contains("handshake"))
            })?;
        }
        for (number, look) in looks[..MASTERS].iter_mut().enumerate() {
            let bound = |number: usize| usize::from(SLOTS) * number / MASTERS;
            // ADDSLOTSRANGE is one of Redis 7.
            let slots: Vec<String> =
                (bound(number)..bound(number + 1)).map(|slot| slot.to_string()).collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            look.try_ask::<()>(&add).map_err(refused)?;
        }
        for number in 0..MASTERS {
            let id: String = looks[number].try_ask(&["CLUSTER", "MYID"]).map_err(refused)?;
            looks[MASTERS + number].try_ask::<()>(&["CLUSTER", "REPLICATE", &id]).map_err(refused)?;
        }
        for (number, look) in looks.iter_mut().enumerate() {
            eventually("the cluster is well", || is_well(look))?;
            eventually("all know who is a replica", || {
                table::read(look).iter().filter(|node| node.flags.contains("slave")).count() == MASTERS
            })?;
            if number >= MASTERS {
                eventually("a replica follows its master", || look.info("master_link_status") == "up")?;
            }
        }
        Ok(())
    }

    /// Returns the URL: `redis+cluster://HOST:PORT,HOST:PORT…`.
    pub fn url(&self) -> String {
        let ports = self.nodes.iter().enumerate().map(|(number, node)| self.network.port(number, node));
        let hosts: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://{}{}", self.nodes[0].credentials(), hosts.join(","))
    }

    /// Returns the servers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns a server, for its hooks.
    pub fn node(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index]
    }

    /// Returns the slot of a key.
    ///
    /// # Panics
    /// Panics if the first node that runs does not answer.
    pub fn slot(&self, key: &str) -> u16 {
        self.any().ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns the master of a slot, as the first node that runs knows it.
    ///
    /// # Panics
    /// Panics if no node answers, or if no master has the slot.
    pub fn master_of(&self, slot: u16) -> usize {
        self.known_master_of(slot).unwrap_or_else(|| panic!("no master has slot {slot}"))
    }

    fn known_master_of(&self, slot: u16) -> Option<usize> {
        let master = table::read(&mut self.any()).into_iter().find(|node| node.has(slot))?;
        let mut ports = self.nodes.iter().enumerate().map(|(number, node)| self.network.port(number, node));
        ports.position(|port| port == master.port)
    }

    /// Starts to move a slot. From now on the master redirects requests for keys that it does not have to
    /// `to`.
    ///
    /// # Panics
    /// Panics if a node refuses.
    pub fn begin_moving(&self, slot: u16, to: usize) {
        let from = self.master_of(slot);
        let (mut giver, mut taker) = (self.nodes[from].look(), self.nodes[to].look());
        let (from, to): (String, String) = (giver.ask(&["CLUSTER", "MYID"]), taker.ask(&["CLUSTER", "MYID"]));
        let slot = slot.to_string();
        taker.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
        giver.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    }

    /// Moves one key of a slot that is being moved.
    ///
    /// # Panics
    /// Panics if the node refuses.
    pub fn move_key(&self, key: &str, to: usize) {
        let from = self.master_of(self.slot(key));
        let port = self.nodes[to].port().to_string();
        self.nodes[from].look().ask::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves the rest of a slot and assigns the slot to `to`.
    ///
    /// # Panics
    /// Panics if a node refuses.
    pub fn end_moving(&self, slot: u16, to: usize) {
        let from = self.master_of(slot);
        let text = slot.to_string();
        loop {
            let keys: Vec<String> = self.nodes[from].look().ask(&["CLUSTER", "GETKEYSINSLOT", &text, "1000"]);
            if keys.is_empty() {
                break;
            }
            keys.iter().for_each(|key| self.move_key(key, to));
        }
        let id: String = self.nodes[to].look().ask(&["CLUSTER", "MYID"]);
        // The new owner first: an old owner redirects clients at once, and a new owner that does not know of
        // the move sends them back.
        for index in [to, from].into_iter().chain((0..MASTERS).filter(|other| ![to, from].contains(other))) {
            self.nodes[index].look().ask::<()>(&["CLUSTER", "SETSLOT", &text, "NODE", &id]);
        }
        eventually("everybody knows the slot's new master", || {
            let knows = |node: &Redis| {
                table::read(&mut node.look()).iter().any(|node| node.id == id && node.has(slot))
            };
            self.nodes.iter().all(knows)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Kills the master of a slot and waits until its replica is the master.
    ///
    /// # Errors
    /// Returns an error if it cannot be killed, or if no replica replaces it.
    pub fn fail_over(&mut self, slot: u16) -> Result<usize, Fault> {
        let old = self.master_of(slot);
        self.nodes[old].kill()?;
        self.allow_failover(true)?;
        eventually("a replica has replaced the master", || {
            let mut running = self.nodes.iter().filter(|node| node.pid().is_some());
            self.known_master_of(slot).is_some_and(|now| now != old)
                && running.all(|node| is_well(&mut node.look()))
        })?;
        // The new master, too, may seem down to the others.
        self.allow_failover(false)?;
        Ok(self.master_of(slot))
    }

    /// Sets whether replicas replace masters that seem down.
    fn allow_failover(&self, is_allowed: bool) -> Result<(), Fault> {
        let never = if is_allowed { "no" } else { "yes" };
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            let words = ["CONFIG", "SET", "cluster-replica-no-failover", never];
            node.try_look()?.try_ask::<()>(&words).map_err(refused)?;
        }
        Ok(())
    }

    fn any(&self) -> Look {
        let running = self.nodes.iter().find(|node| node.pid().is_some());
        running.expect("a node runs").look()
    }
}

/// A kill ends all masters at once, so that no replica replaces one. Failover has its own tests.
impl Faults for Cluster {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        self.nodes[..MASTERS].iter_mut().try_for_each(Faults::kill)
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.nodes[..MASTERS].iter_mut().try_for_each(Faults::restart)?;
        for node in &self.nodes {
            eventually("the cluster is well again", || is_well(&mut node.look()))?;
        }
        Ok(())
    }

    // The bus does not pass through the proxies, so no master is replaced.
    network_faults!();
}

/// Whether a node reports that every slot is served.
fn is_well(look: &mut Look) -> bool {
    let info: String = look.try_ask(&["CLUSTER", "INFO"]).unwrap_or_default();
    let slots = format!("cluster_slots_ok:{SLOTS}");
    ["cluster_state:ok", &slots].iter().all(|wanted| info.lines().any(|line| line == *wanted))
}
