//! A cluster: a link per master, and the way to it.
//!
//! `redis`' own cluster client replays and blocks by itself. Here a call waits for nothing but its own shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use fencepost_core::sync::{Mutex, RwLock};
use fencepost_core::{ErrorKind, Moment, Runtime};
use redis::{Cmd, Value};

use crate::config::Place;
use crate::conn::call::{Call, Lane, Trouble};
use crate::conn::connect::Inbox;
use crate::conn::persistent::Wire;
use crate::conn::server::{Link, Request, Stop, Story, Terms};
use crate::conn::target::{Nodes, Whereabouts};
use crate::deployment::slots::SLOTS;
use crate::error::{Failure, moving, silent};

/// How long one node may take to say what the cluster looks like; then the next one is asked.
const TURN: Duration = Duration::from_millis(500);

/// A cluster.
pub(crate) struct Cluster {
    terms: Terms,
    table: RwLock<Arc<Table>>,
    /// Links by their servers; those that serve no slot go with the next look at the cluster.
    links: Mutex<HashMap<Place, Arc<Link>>>,
    seeds: Vec<Place>,
    /// The nodes that may carry the inbox.
    nodes: Nodes,
    inbox: Wire,
    looking: AtomicBool,
    /// How often it was looked at.
    looks: AtomicUsize,
    me: Weak<Cluster>,
}

/// The master of each slot.
struct Table {
    slots: Vec<Option<Arc<Link>>>,
    masters: Vec<Arc<Link>>,
}

impl Cluster {
    /// Asks the seeds who the others are, and opens the inbox at one node.
    pub(crate) async fn open(
        seeds: Vec<Place>,
        terms: Terms,
        inbox: Inbox,
        until: Moment,
    ) -> Result<Arc<Cluster>, Failure> {
        let nodes: Nodes = Arc::new(Mutex::new(seeds.clone()));
        let cluster = Arc::new_cyclic(|me| Cluster {
            inbox: Wire::new(
                Whereabouts::Any(Arc::clone(&nodes)),
                Arc::clone(&terms.manner),
                Some(inbox),
                &terms.runtime,
                terms.connect_timeout,
                terms.home.clone(),
            ),
            table: RwLock::new(Arc::new(Table { slots: vec![None; SLOTS], masters: Vec::new() })),
            links: Mutex::default(),
            seeds,
            nodes,
            looking: AtomicBool::new(false),
            looks: AtomicUsize::new(0),
            me: Weak::clone(me),
            terms,
        });
        let mut story = Story::default();
        // A glance is too short for the first connection over a slow network, which goes on being made.
        while let Err(failure) = cluster.look().await {
            if failure.lasts() || cluster.terms.runtime.clock().now() >= until {
                return Err(failure);
            }
            story.pause(&cluster.terms, until).await;
        }
        cluster.inbox.connected(until, true).await?;
        Ok(cluster)
    }

    pub(crate) fn masters(&self) -> Vec<Arc<Link>> {
        self.table().masters.clone()
    }

    pub(crate) fn leave_caller_runtime(&self) {
        self.inbox.leave_caller_runtime();
        for link in self.links().values() {
            link.caller.leave_caller_runtime();
        }
    }

    pub(crate) fn close(&self) {
        self.inbox.close();
        for link in self.links().values() {
            link.close();
        }
    }

    /// Calls at the master of the slot, wherever it goes, until there is an answer or the time is over.
    pub(crate) async fn route(
        &self,
        lane: Lane,
        request: Request<'_>,
        call: &Call,
    ) -> Result<Value, Trouble> {
        let clock = self.terms.runtime.clock();
        let until = clock.now() + self.terms.timeout;
        let mut story = Story::default();
        let mut asked = None;
        loop {
            let (link, asking) = match asked.take() {
                Some(link) => (Some(link), true),
                None => (self.table().slots[usize::from(call.slot)].clone(), false),
            };
            let stop = match &link {
                Some(link) => {
                    match link.attempt(lane, request, Some(call), asking, until, &mut story).await {
                        Ok(value) => return Ok(value),
                        Err(stop) => stop,
                    }
                }
                None => Stop::Astray(Failure::new(
                    ErrorKind::Unreachable,
                    "no node of the cluster serves the lock's slot; look at CLUSTER INFO",
                )),
            };
            match stop {
                Stop::Ends(trouble) => return Err(trouble),
                Stop::Elsewhere { to, once } => {
                    let Some(place) = named(&to, link.as_deref()) else {
                        return Err(story.ends(&moving()));
                    };
                    let next = self.link(&place);
                    if once {
                        asked = Some(next);
                    } else {
                        self.set(call.slot, next);
                        self.look_soon();
                    }
                    story.last = Some(moving());
                    // Two nodes that send us to each other must not be asked as fast as they can answer.
                    story.hops += 1;
                    if story.hops > 3 {
                        story.pause(&self.terms, until).await;
                    }
                }
                Stop::Divided if several(call) => return Err(Trouble::Divided),
                Stop::Divided => {
                    story.last = Some(moving());
                    story.pause(&self.terms, until).await;
                }
                Stop::Astray(failure) => {
                    if failure.lasts() {
                        return Err(story.ends(&failure));
                    }
                    if let Some(place) = link.as_deref().and_then(Link::place) {
                        self.inbox.leave(place);
                    }
                    story.last = Some(failure);
                    self.look_soon();
                    story.pause(&self.terms, until).await;
                }
            }
            if clock.now() >= until {
                let last = story.last.take().unwrap_or_else(|| silent("the cluster"));
                return Err(story.ends(&last));
            }
        }
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read())
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Place, Arc<Link>>> {
        self.links.lock()
    }

    fn link(&self, place: &Place) -> Arc<Link> {
        let mut links = self.links();
        let new = || Arc::new(Link::new(Whereabouts::Fixed(place.clone()), &self.terms, None, true));
        Arc::clone(links.entry(place.clone()).or_insert_with(new))
    }

    fn set(&self, slot: u16, link: Arc<Link>) {
        let mut table = self.table.write();
        let mut slots = table.slots.clone();
        slots[usize::from(slot)] = Some(Arc::clone(&link));
        let mut masters = table.masters.clone();
        if !masters.iter().any(|master| Arc::ptr_eq(master, &link)) {
            masters.push(link);
        }
        *table = Arc::new(Table { slots, masters });
    }

    /// Looks at the cluster in the background, once at a time.
    fn look_soon(&self) {
        if self.looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let me = Weak::clone(&self.me);
        let runtime: &Runtime = &self.terms.runtime;
        runtime.spawn(async move {
            if let Some(me) = me.upgrade() {
                if let Err(failure) = me.look().await {
                    tracing::debug!(error = %failure.error(), "no node says what the cluster looks like");
                }
                me.looking.store(false, Ordering::SeqCst);
            }
        });
    }

    /// Asks one node after the other for the slots.
    async fn look(&self) -> Result<(), Failure> {
        let mut places: Vec<Place> = self.masters().iter().filter_map(|link| link.place().cloned()).collect();
        // Each time another one begins: a master that is cut off from the others, and not from us, answers what was true before.
        let turn = self.looks.fetch_add(1, Ordering::Relaxed) % places.len().max(1);
        places.rotate_left(turn);
        let known = self.nodes.lock().clone();
        for place in known.into_iter().chain(self.seeds.iter().cloned()) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let clock = self.terms.runtime.clock();
        let mut last = None;
        for place in places {
            let link = self.link(&place);
            let until = clock.now() + TURN;
            let mut story = Story::default();
            let request = Request { command: &command, wait: None, stays: false };
            match link.attempt(Lane::Renewer, request, None, false, until, &mut story).await {
                Ok(Value::Array(ranges)) if self.learn(&ranges, &place) => return Ok(()),
                Err(Stop::Astray(failure)) => last = Some(failure),
                Err(Stop::Ends(Trouble::Said(error))) => {
                    let message =
                        "CLUSTER SLOTS fails; name nodes of a cluster, or use redis: for a single server";
                    let failure = Failure::new(ErrorKind::Configuration, message).because(error);
                    last.get_or_insert(failure);
                }
                _ => {}
            }
        }
        Err(last.unwrap_or_else(|| {
            Failure::new(
                ErrorKind::Unreachable,
                "no node of the cluster serves any slots; look at CLUSTER INFO",
            )
        }))
    }

    /// Takes over what `from` says. An answer without slots is none: that node has just been reset.
    fn learn(&self, ranges: &[Value], from: &Place) -> bool {
        let mut slots = vec![None; SLOTS];
        let (mut masters, mut nodes) = (Vec::<Arc<Link>>::new(), Vec::new());
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(first), Value::Int(last), servers @ ..] = &**parts else { continue };
            let mut servers = servers.iter().filter_map(|server| server_of(server, from));
            let Some(master) = servers.next() else { continue };
            let link = self.link(&master);
            let (first, last) = (*first as usize, *last as usize);
            if let Some(slots) = slots.get_mut(first..=last.min(SLOTS - 1)) {
                slots.fill(Some(Arc::clone(&link)));
            }
            if !masters.iter().any(|known| Arc::ptr_eq(known, &link)) {
                masters.push(link);
            }
            nodes.extend(std::iter::once(master).chain(servers));
        }
        if masters.is_empty() {
            return false;
        }
        self.links().retain(|_, link| masters.iter().any(|master| Arc::ptr_eq(master, link)));
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
fn server_of(value: &Value, from: &Place) -> Option<Place> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), ..] = &**parts else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
        Value::SimpleString(host) if !host.is_empty() => host.clone(),
        _ => host_of(from)?,
    };
    Some(Place::Tcp(host, u16::try_from(*port).ok()?))
}

fn host_of(place: &Place) -> Option<String> {
    match place {
        Place::Tcp(host, _) => Some(host.clone()),
        Place::Unix(_) => None,
    }
}

/// `host:port` of a redirection; without a host it is that of the node that said so.
fn named(to: &str, from: Option<&Link>) -> Option<Place> {
    let (host, port) = to.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = if host.is_empty() || host == "?" { host_of(from?.place()?)? } else { host.to_owned() };
    Some(Place::Tcp(host, port))
}

#[cfg(test)]
mod tests;
