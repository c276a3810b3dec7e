//! The deployment as the line sees it: scripts go in, messages come out.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Error, Result, Runtime};
use redis::{Arg, Cmd, Value};
use tokio::runtime::Handle;

use crate::ballot::VOTE;
use crate::cluster::Cluster;
use crate::config::{Config, Servers};
use crate::connect::{Inbox, Manner};
use crate::error::{Failure, too_few};
use crate::line::ENTER;
use crate::link::{Link, Request, SHARE, Terms, wait, waited};
use crate::place::Place;
use crate::script::Script;
use crate::sentinel::Sentinels;
use crate::slots::slot;
use crate::tls::Security;
use crate::wire::{Line, Whereabouts, Wire};

/// Which connection a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Requests that somebody waits for, and the inbox.
    Caller,
    /// Renewals.
    Renewer,
}

/// One call of a script whose keys are all in one slot, or a command in its place.
pub(crate) struct Call {
    /// What the command calls, if that is a script.
    pub(crate) script: Option<&'static Script>,
    pub(crate) slot: u16,
    /// Made by [`Script::command`], if it calls one.
    pub(crate) command: Cmd,
    /// How its last argument ends, if that says which run of the server answers: true only over a connection that has met this one.
    run: Option<Arc<str>>,
    repeated: AtomicBool,
    /// Whose request it is, where that matters to its order among the claim's requests.
    place: Option<Arc<Place>>,
    /// Withdraws the claim: the command that also leaves a tombstone.
    entombing: Option<Cmd>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, slot: u16, command: Cmd) -> Call {
        Call { script: Some(script), ..Call::plain(slot, command) }
    }

    /// One that is no script.
    pub(crate) fn plain(slot: u16, command: Cmd) -> Call {
        Call {
            script: None,
            slot,
            command,
            run: None,
            repeated: AtomicBool::new(false),
            place: None,
            entombing: None,
        }
    }

    /// One whose last argument ends with the name of the run of the server that answers it, if there is one.
    pub(crate) fn naming(script: &'static Script, command: Cmd, run: Option<Arc<str>>) -> Call {
        Call { run, ..Call::new(script, 0, command) }
    }

    /// Asks for this claim's lock.
    pub(crate) fn entering(self, place: &Arc<Place>) -> Call {
        Call { place: Some(Arc::clone(place)), ..self }
    }

    /// Withdraws this claim. `entombing` is sent instead where a request of the claim may arrive later.
    pub(crate) fn leaving(self, place: &Arc<Place>, entombing: Cmd) -> Call {
        Call { place: Some(Arc::clone(place)), entombing: Some(entombing), ..self }
    }

    /// Notes that it is sent over this connection. Returns the command for it, where that is not the call's own.
    pub(crate) fn sent(&self, line: &Line) -> Option<Cow<'_, Cmd>> {
        match (&self.place, &self.entombing) {
            (Some(place), None) => place.trail.sent(line.id),
            (Some(place), Some(entombing)) if place.trail.may_overtake(line.id) => {
                return Some(Cow::Borrowed(entombing));
            }
            _ => {}
        }
        self.unnamed(line.run.as_ref()).map(Cow::Owned)
    }

    /// Returns whether it withdraws a claim behind requests that it follows over this connection.
    pub(crate) fn stays(&self, line: &Line) -> bool {
        let follows = |place: &Arc<Place>| !place.trail.is_over() && !place.trail.may_overtake(line.id);
        self.entombing.is_some() && self.place.as_ref().is_some_and(follows)
    }

    /// Notes that the server has answered over this connection.
    pub(crate) fn answered(&self, line: &Line) {
        if let Some(place) = &self.place {
            place.trail.answered(line.id);
        }
    }

    /// What to send over a connection that has met `run`, where it is not the command as it stands: the same, naming none.
    fn unnamed(&self, run: Option<&Arc<str>>) -> Option<Cmd> {
        let named = self.run.as_ref().filter(|named| Some(*named) != run)?;
        tracing::debug!(%named, "the server was restarted since the vote was written down");
        let mut command = Cmd::new();
        let mut args = self.command.args_iter().peekable();
        while let Some(Arg::Simple(bytes)) = args.next() {
            let name = if args.peek().is_none() { named.len() } else { 0 };
            command.arg(&bytes[..bytes.len() - name]);
        }
        Some(command)
    }

    /// Does it ask for a lock? A server that answers this takes writes.
    pub(crate) fn asks(&self) -> bool {
        [&ENTER, &VOTE].into_iter().any(|asks| self.script.is_some_and(|script| std::ptr::eq(asks, script)))
    }

    /// Was it sent more than once? A copy may then still be on its way when the answer is here.
    pub(crate) fn was_repeated(&self) -> bool {
        self.repeated.load(Ordering::Relaxed)
    }

    pub(crate) fn repeat(&self) {
        self.repeated.store(true, Ordering::Relaxed);
    }
}

/// Why a call did not work.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The keys of a slot are on two servers while it moves: ask for them one by one.
    Divided,
    /// Something else stands at the key, and nothing of a lock.
    Foreign(Error),
    /// Already worded.
    Said(Error),
}

impl Trouble {
    /// The error for whoever asked for one key, or has nothing left to divide.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Trouble::Divided => crate::error::moving().error(),
            Trouble::Foreign(error) | Trouble::Said(error) => error,
        }
    }
}

/// What comes in without being asked for.
pub(crate) trait Events: Send + Sync + 'static {
    /// A message came to the inbox. Called on the I/O task: short, no blocking.
    fn message(&self, payload: &[u8]);
    /// The inbox is subscribed again after a break: messages may have been lost.
    fn restored(&self);
}

/// A deployment.
pub(crate) struct Net {
    way: Way,
    /// How long replicas may take.
    wait: Duration,
}

enum Way {
    One(Arc<Link>),
    Sentinel {
        link: Arc<Link>,
        /// One to each sentinel, to hear of a new master.
        listening: Vec<Wire>,
    },
    Cluster(Arc<Cluster>),
}

impl Net {
    /// Connects; the inbox is subscribed when this returns.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(crate) async fn open(config: Config, runtime: &Runtime, inbox: Inbox) -> Result<Arc<Net>> {
        let security = config.tls.as_ref().map(Security::new).transpose()?;
        let manner = |login, database| Arc::new(Manner { login, database, security: security.clone() });
        let (connect_timeout, timeout) = (config.connect_timeout, config.timeout);
        let terms = Terms {
            manner: manner(config.login, config.database),
            runtime: runtime.clone(),
            connect_timeout,
            timeout,
            home: Handle::try_current().ok(),
        };
        let until = runtime.clock().now() + connect_timeout;
        let way = match config.servers {
            Servers::One(place) => {
                let link = Arc::new(Link::new(Whereabouts::Fixed(place), &terms, Some(inbox), false));
                link.open(until).await?;
                Way::One(link)
            }
            Servers::Sentinel { sentinels, master, login } => {
                let manner = manner(login, 0);
                let sentinels = Arc::new(Sentinels::new(sentinels, master, manner, &terms));
                let whereabouts = Whereabouts::Master(Arc::clone(&sentinels));
                let link = Arc::new(Link::new(whereabouts, &terms, Some(inbox), false));
                link.open(until).await?;
                let listening = sentinels.listen(&link, &terms);
                Way::Sentinel { link, listening }
            }
            Servers::Cluster(seeds) => Way::Cluster(Cluster::open(seeds, terms, inbox, until).await?),
        };
        Ok(Arc::new(Net { way, wait: timeout / SHARE }))
    }

    /// The slot of a key in a cluster, else 0.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot(key) } else { 0 }
    }

    /// Are there slots?
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.way, Way::Cluster(_))
    }

    /// Calls a script.
    ///
    /// # Cancel safety
    /// The first poll sends if the connection is up, and needs no runtime for that. Dropped after that it takes effect or not.
    pub(crate) async fn call(&self, lane: Lane, call: &Call) -> Result<Value, Trouble> {
        self.ask(lane, Request { command: &call.command, wait: None, stays: false }, call).await
    }

    /// Calls a script, then WAIT if replicas are wanted: answers its value and how many of them have it. Without any: all that
    /// there could be. WAIT blocks what is behind it and counts what its own connection has written, so that such calls have
    /// connections of their own.
    pub(crate) async fn call_with(
        &self,
        lane: Lane,
        call: &Call,
        replicas: u32,
    ) -> Result<(Value, u32), Trouble> {
        if replicas == 0 {
            return Ok((self.call(lane, call).await?, u32::MAX));
        }
        let wait = wait(replicas, self.wait);
        let request = Request { command: &call.command, wait: Some(&wait), stays: false };
        self.ask(lane, request, call).await.and_then(waited)
    }

    /// Too few replicas have what was written.
    pub(crate) fn short(&self, copies: u32, replicas: u32) -> Failure {
        too_few(copies, replicas, self.wait)
    }

    async fn ask(&self, lane: Lane, request: Request<'_>, call: &Call) -> Result<Value, Trouble> {
        match &self.way {
            Way::One(link) | Way::Sentinel { link, .. } => link.persist(lane, request, Some(call)).await,
            Way::Cluster(cluster) => Box::pin(cluster.route(lane, request, call)).await,
        }
    }

    /// Which run of a node of a quorum the caller's connection has met, if that is known.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match &self.way {
            Way::One(link) => link.run(),
            Way::Sentinel { .. } | Way::Cluster(_) => None,
        }
    }

    /// Every master.
    pub(crate) fn masters(&self) -> Vec<Arc<Link>> {
        match &self.way {
            Way::One(link) | Way::Sentinel { link, .. } => vec![Arc::clone(link)],
            Way::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Lets go of all connections.
    pub(crate) async fn close(&self) {
        match &self.way {
            Way::One(link) => link.close(),
            Way::Sentinel { link, listening } => {
                listening.iter().for_each(Wire::close);
                link.close();
            }
            Way::Cluster(cluster) => cluster.close(),
        }
    }
}

#[cfg(test)]
mod tests;
