//! A deployment: one server, a master that Sentinel names, or a cluster.

mod cluster;
mod sentinel;
pub(crate) mod slots;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fencepost_core::{Error, Result, Runtime};
use redis::Value;
use tokio::runtime::Handle;

use crate::config::tls::Security;
use crate::config::{Config, Servers};
use crate::conn::call::{Call, CallError, Lane};
use crate::conn::connect::{ConnectOptions, Inbox};
use crate::conn::persistent::PersistentConnection;
use crate::conn::request::{Request, SHARE, wait, waited};
use crate::conn::sentinels::Sentinels;
use crate::conn::server::{Server, ServerOptions};
use crate::conn::target::Target;
use crate::error::too_few;
use cluster::Cluster;
use sentinel::listen;
use slots::slot;

/// A deployment.
pub(crate) struct Deployment {
    topology: Topology,
    /// How long replicas may take.
    wait: Duration,
}

enum Topology {
    One {
        server: Arc<Server>,
        /// One connection to each sentinel, for news of a new master.
        listening: Vec<PersistentConnection>,
    },
    Cluster(Arc<Cluster>),
}

impl Deployment {
    /// Connects; the inbox is subscribed when this returns.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(crate) async fn open(config: Config, runtime: &Runtime, inbox: Inbox) -> Result<Arc<Deployment>> {
        let security = config.tls.as_ref().map(Security::new).transpose()?;
        let connect_options =
            |login, database| Arc::new(ConnectOptions { login, database, security: security.clone() });
        let (connect_timeout, timeout) = (config.connect_timeout, config.timeout);
        let options = ServerOptions {
            connect_options: connect_options(config.login, config.database),
            runtime: runtime.clone(),
            connect_timeout,
            timeout,
            home: Handle::try_current().ok(),
        };
        let until = runtime.clock().now() + connect_timeout;
        let topology = match config.servers {
            Servers::One(address) => {
                let server = Arc::new(Server::new(Target::Fixed(address), &options, Some(inbox), false));
                server.open(until).await?;
                Topology::One { server, listening: Vec::new() }
            }
            Servers::Sentinel { sentinels, master, login } => {
                let sentinels = Arc::new(Sentinels {
                    addresses: sentinels,
                    name: master,
                    connect_options: connect_options(login, 0),
                    clock: runtime.clock().clone(),
                    // Half of what connecting to the master may take with all that it needs.
                    patience: connect_timeout / 2,
                    turn: AtomicUsize::new(0),
                });
                let target = Target::Master(Arc::clone(&sentinels));
                let server = Arc::new(Server::new(target, &options, Some(inbox), false));
                server.open(until).await?;
                let listening = listen(&sentinels, &server, &options);
                Topology::One { server, listening }
            }
            Servers::Cluster(seeds) => Topology::Cluster(Cluster::open(seeds, options, inbox, until).await?),
        };
        Ok(Arc::new(Deployment { topology, wait: timeout / SHARE }))
    }

    /// The slot of a key in a cluster, else 0.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot(key) } else { 0 }
    }

    /// Are there slots?
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Calls a script.
    ///
    /// # Cancel safety
    /// The first poll sends if the connection is up, and needs no runtime for that. Dropped after that it takes effect or not.
    pub(crate) async fn call(&self, lane: Lane, call: &Call) -> Result<Value, CallError> {
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
    ) -> Result<(Value, u32), CallError> {
        if replicas == 0 {
            return Ok((self.call(lane, call).await?, u32::MAX));
        }
        let wait = wait(replicas, self.wait);
        let request = Request { command: &call.command, wait: Some(&wait), stays: false };
        self.ask(lane, request, call).await.and_then(waited)
    }

    /// Returns the error for a write that too few replicas have. The master has it, so callers that do not undo it say that its effect is
    /// unknown.
    pub(crate) fn short(&self, copies: u32, replicas: u32) -> Error {
        too_few(copies, replicas, self.wait)
    }

    async fn ask(&self, lane: Lane, request: Request<'_>, call: &Call) -> Result<Value, CallError> {
        match &self.topology {
            Topology::One { server, .. } => server.persist(lane, request, Some(call)).await,
            Topology::Cluster(cluster) => Box::pin(cluster.route(lane, request, call)).await,
        }
    }

    /// Which run of a node of a quorum the caller's connection has met, if that is known.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match &self.topology {
            Topology::One { server, listening } if listening.is_empty() => server.run(),
            Topology::One { .. } | Topology::Cluster(_) => None,
        }
    }

    /// Every master.
    pub(crate) fn masters(&self) -> Vec<Arc<Server>> {
        match &self.topology {
            Topology::One { server, .. } => vec![Arc::clone(server)],
            Topology::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Moves the connections that run on the caller's runtime to the client's own thread.
    pub(crate) fn leave_caller_runtime(&self) {
        match &self.topology {
            Topology::One { server, .. } => server.caller.leave_caller_runtime(),
            Topology::Cluster(cluster) => cluster.leave_caller_runtime(),
        }
    }

    /// Attempts to make the connections that are down, without the rest of their pauses.
    pub(crate) fn try_now(&self) {
        match &self.topology {
            Topology::One { server, .. } => server.try_now(),
            Topology::Cluster(cluster) => cluster.try_now(),
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        match &self.topology {
            Topology::One { server, listening } => {
                listening.iter().for_each(PersistentConnection::close);
                server.close();
            }
            Topology::Cluster(cluster) => cluster.close(),
        }
    }
}

#[cfg(test)]
mod tests;
