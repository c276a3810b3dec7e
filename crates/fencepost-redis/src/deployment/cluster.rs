//! A cluster: one server for each master, and the search for the master of a slot.
//!
//! `redis`' own cluster client replays and blocks by itself. Here a call waits for nothing but its own shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use fencepost_core::sync::{Mutex, RwLock};
use fencepost_core::{Error, ErrorKind, Moment, Runtime};
use redis::{Cmd, Value};

use crate::config::Address;
use crate::conn::call::{Call, CallError, Lane};
use crate::conn::connect::Inbox;
use crate::conn::persistent::PersistentConnection;
use crate::conn::request::Request;
use crate::conn::server::{AttemptError, CallProgress, Server, ServerOptions};
use crate::conn::target::{Nodes, Target};
use crate::deployment::slots::SLOTS;
use crate::error::{moving, redis_error, silent};

/// How long one node may take to say what the cluster looks like; then the next one is asked.
const TURN: Duration = Duration::from_millis(500);

/// A cluster.
pub(crate) struct Cluster {
    options: ServerOptions,
    table: RwLock<Arc<Table>>,
    /// Links by their servers; those that serve no slot go with the next look at the cluster.
    servers: Mutex<HashMap<Address, Arc<Server>>>,
    seeds: Vec<Address>,
    /// The nodes that may carry the inbox.
    nodes: Nodes,
    inbox: PersistentConnection,
    looking: AtomicBool,
    /// How often it was looked at.
    looks: AtomicUsize,
    me: Weak<Cluster>,
}

/// The master of each slot.
struct Table {
    slots: Vec<Option<Arc<Server>>>,
    masters: Vec<Arc<Server>>,
}

impl Cluster {
    /// Asks the seeds who the others are, and opens the inbox at one node.
    pub(crate) async fn open(
        seeds: Vec<Address>,
        options: ServerOptions,
        inbox: Inbox,
        until: Moment,
    ) -> Result<Arc<Cluster>, Error> {
        let nodes: Nodes = Arc::new(Mutex::new(seeds.clone()));
        let cluster = Arc::new_cyclic(|me| Cluster {
            inbox: PersistentConnection::new(
                Target::Any(Arc::clone(&nodes)),
                Arc::clone(&options.connect_options),
                Some(inbox),
                &options.runtime,
                options.connect_timeout,
                options.home.clone(),
            ),
            table: RwLock::new(Arc::new(Table { slots: vec![None; SLOTS], masters: Vec::new() })),
            servers: Mutex::default(),
            seeds,
            nodes,
            looking: AtomicBool::new(false),
            looks: AtomicUsize::new(0),
            me: Weak::clone(me),
            options,
        });
        let mut progress = CallProgress::default();
        // A glance is too short for the first connection over a slow network, which goes on being made.
        while let Err(failure) = cluster.look().await {
            if !failure.is_transient() || cluster.options.runtime.clock().now() >= until {
                return Err(failure);
            }
            progress.pause(&cluster.options, until).await;
        }
        cluster.inbox.connected(until, true).await?;
        Ok(cluster)
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Server>> {
        self.table().masters.clone()
    }

    pub(crate) fn leave_caller_runtime(&self) {
        self.inbox.leave_caller_runtime();
        for server in self.servers().values() {
            server.caller.leave_caller_runtime();
        }
    }

    pub(crate) fn close(&self) {
        self.inbox.close();
        for server in self.servers().values() {
            server.close();
        }
    }

    /// Calls at the master of the slot, wherever it goes, until there is an answer or the time is over.
    pub(crate) async fn route(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: &Call,
    ) -> Result<Value, CallError> {
        if lane == Lane::Renewer {
            self.inbox.reconnect_now();
        }
        let clock = self.options.runtime.clock();
        let until = clock.now() + self.options.timeout;
        let mut progress = CallProgress::default();
        let mut asked = None;
        loop {
            let (server, asking) = match asked.take() {
                Some(server) => (Some(server), true),
                None => (self.table().slots[usize::from(call.slot)].clone(), false),
            };
            let stop = match &server {
                Some(server) => {
                    match server.attempt(lane, request, Some(call), asking, until, &mut progress).await {
                        Ok(value) => return Ok(value),
                        Err(stop) => stop,
                    }
                }
                None => AttemptError::Astray(redis_error(
                    ErrorKind::Unreachable,
                    "no node of the cluster serves the lock's slot; look at CLUSTER INFO",
                )),
            };
            match stop {
                AttemptError::Ends(failed) => return Err(failed),
                AttemptError::Elsewhere { to, once } => {
                    let Some(address) = named(&to, server.as_deref()) else {
                        return Err(progress.ends(&moving()));
                    };
                    let next = self.server(&address);
                    if once {
                        asked = Some(next);
                    } else {
                        self.set(call.slot, next);
                        self.look_soon();
                    }
                    progress.last = Some(moving());
                    // Two nodes that send us to each other must not be asked as fast as they can answer.
                    progress.hops += 1;
                    if progress.hops > 3 {
                        progress.pause(&self.options, until).await;
                    }
                }
                AttemptError::Divided if several(call) => return Err(CallError::Divided),
                AttemptError::Divided => {
                    progress.last = Some(moving());
                    progress.pause(&self.options, until).await;
                }
                AttemptError::Astray(failure) => {
                    if !failure.is_transient() {
                        return Err(progress.ends(&failure));
                    }
                    if let Some(address) = server.as_deref().and_then(Server::address) {
                        self.inbox.leave(address);
                    }
                    progress.last = Some(failure);
                    self.look_soon();
                    progress.pause(&self.options, until).await;
                }
            }
            if clock.now() >= until {
                let last = progress.last.take().unwrap_or_else(|| silent("the cluster"));
                return Err(progress.ends(&last));
            }
        }
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read())
    }

    /// Attempts to make the connections that are down, without the rest of their pauses.
    pub(super) fn try_now(&self) {
        self.servers().values().for_each(|server| server.try_now());
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<Address, Arc<Server>>> {
        self.servers.lock()
    }

    fn server(&self, address: &Address) -> Arc<Server> {
        let mut servers = self.servers();
        let new = || Arc::new(Server::new(Target::Fixed(address.clone()), &self.options, None, true));
        Arc::clone(servers.entry(address.clone()).or_insert_with(new))
    }

    fn set(&self, slot: u16, server: Arc<Server>) {
        let mut table = self.table.write();
        let mut slots = table.slots.clone();
        slots[usize::from(slot)] = Some(Arc::clone(&server));
        let mut masters = table.masters.clone();
        if !masters.iter().any(|master| Arc::ptr_eq(master, &server)) {
            masters.push(server);
        }
        *table = Arc::new(Table { slots, masters });
    }

    /// Looks at the cluster in the background, once at a time.
    fn look_soon(&self) {
        if self.looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let me = Weak::clone(&self.me);
        let runtime: &Runtime = &self.options.runtime;
        runtime.spawn(async move {
            if let Some(me) = me.upgrade() {
                if let Err(failure) = me.look().await {
                    tracing::debug!(error = %failure, "no node says what the cluster looks like");
                }
                me.looking.store(false, Ordering::SeqCst);
            }
        });
    }

    /// Asks one node after the other for the slots.
    async fn look(&self) -> Result<(), Error> {
        let mut addresses: Vec<Address> =
            self.masters().iter().filter_map(|server| server.address().cloned()).collect();
        // Each time another one begins: a master that is cut off from the others, and not from us, answers what was true before.
        let turn = self.looks.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(turn);
        let known = self.nodes.lock().clone();
        for address in known.into_iter().chain(self.seeds.iter().cloned()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let clock = self.options.runtime.clock();
        let mut last = None;
        for address in addresses {
            let server = self.server(&address);
            let until = clock.now() + TURN;
            let mut progress = CallProgress::default();
            let request = Request { command: &command, wait: None, stays: false };
            match server.attempt(Lane::Renewer, request, None, false, until, &mut progress).await {
                Ok(Value::Array(ranges)) if self.learn(&ranges, &address) => return Ok(()),
                Err(AttemptError::Astray(failure)) => last = Some(failure),
                Err(AttemptError::Ends(CallError::Said(error))) => {
                    let message =
                        "CLUSTER SLOTS fails; name nodes of a cluster, or use redis: for a single server";
                    let failure = redis_error(ErrorKind::Configuration, message).because(error);
                    last.get_or_insert(failure);
                }
                _ => {}
            }
        }
        Err(last.unwrap_or_else(|| {
            redis_error(
                ErrorKind::Unreachable,
                "no node of the cluster serves any slots; look at CLUSTER INFO",
            )
        }))
    }

    /// Takes over what `from` says. An answer without slots is none: that node has just been reset.
    fn learn(&self, ranges: &[Value], from: &Address) -> bool {
        let mut slots = vec![None; SLOTS];
        let (mut masters, mut nodes) = (Vec::<Arc<Server>>::new(), Vec::new());
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), servers @ ..] = &**parts else { continue };
            let mut servers = servers.iter().filter_map(|server| server_of(server, from));
            let Some(master) = servers.next() else { continue };
            let server = self.server(&master);
            let (first, last) = (*first as usize, *last as usize);
            if let Some(slots) = slots.get_mut(first..=last.min(SLOTS - 1)) {
                slots.fill(Some(Arc::clone(&server)));
            }
            if !masters.iter().any(|known| Arc::ptr_eq(known, &server)) {
                masters.push(server);
            }
            nodes.extend(std::iter::once(master).chain(servers));
        }
        if masters.is_empty() {
            return false;
        }
        self.servers().retain(|_, server| masters.iter().any(|master| Arc::ptr_eq(master, server)));
        self.inbox.stay_among(&nodes);
        *self.nodes.lock() = nodes;
        *self.table.write() = Arc::new(Table { slots, masters });
        true
    }
}

/// Does the call name more than one key?
fn several(call: &Call) -> bool {
    let count = call.command.args_iter().nth(2);
    call.script.is_some() && !matches!(count, Some(redis::Arg::Simple(b"1")))
}

/// `[host, port, id, …]`; a node that does not know its own name leaves it out.
fn server_of(value: &Value, from: &Address) -> Option<Address> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), ..] = &**parts else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
        Value::SimpleString(host) if !host.is_empty() => host.clone(),
        _ => host_of(from)?,
    };
    Some(Address::Tcp(host, u16::try_from(*port).ok()?))
}

fn host_of(address: &Address) -> Option<String> {
    match address {
        Address::Tcp(host, _) => Some(host.clone()),
        Address::Unix(_) => None,
    }
}

/// `host:port` of a redirection; without a host it is that of the node that said so.
fn named(to: &str, from: Option<&Server>) -> Option<Address> {
    let (host, port) = to.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = if host.is_empty() || host == "?" { host_of(from?.address()?)? } else { host.to_owned() };
    Some(Address::Tcp(host, port))
}

#[cfg(test)]
mod tests;
