//! A deployment: one server, a master that Sentinel names, or a cluster.

mod cluster;
mod sentinel;
pub(crate) mod slots;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Result, Runtime};
use redis::Value;
use tokio::runtime::Handle;

use crate::config::tls::Security;
use crate::config::{Config, Servers};
use crate::conn::call::{Call, Lane, Trouble};
use crate::conn::connect::{Inbox, Manner};
use crate::conn::persistent::Wire;
use crate::conn::server::{Link, Request, SHARE, Terms, wait, waited};
use crate::conn::target::Whereabouts;
use crate::error::{Failure, too_few};
use cluster::Cluster;
use sentinel::Sentinels;
use slots::slot;

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
        /// One connection to each sentinel, for news of a new master.
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
                let whereabouts = Whereabouts::Master(Arc::clone(&sentinels) as _);
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

    /// Moves the connections that run on the caller's runtime to the client's own thread.
    pub(crate) fn leave_caller_runtime(&self) {
        match &self.way {
            Way::One(link) | Way::Sentinel { link, .. } => link.caller.leave_caller_runtime(),
            Way::Cluster(cluster) => cluster.leave_caller_runtime(),
        }
    }

    /// Closes all connections.
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
