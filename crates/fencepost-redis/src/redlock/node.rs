//! How a client comes to the nodes of a quorum.

use fencepost_core::sync::Mutex;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Claim, Clock, Conversion, Entry, Error, ErrorKind, Found, How, Leave, Left, Moment,
    Place, Request, Result, Runtime, Session,
};
use tokio::sync::watch;

use super::{ENGINE, Node};
use crate::backend::{RedisBackend, connect};
use crate::client::RedisClient;
use crate::config::Config;

/// The pause before a node that cannot be reached is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// The runs of the servers that were met: a server with two names would have two votes for one loss of data.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Mutex<HashSet<Arc<str>>>>);

impl Runs {
    /// Notes the server's run, if it says so. Fails if another node has it.
    fn add(&self, client: &RedisClient) -> Result<()> {
        let Some(run) = client.deployment.run() else { return Ok(()) };
        if self.0.lock().insert(run) {
            return Ok(());
        }
        let message =
            "two nodes of the URL are one server under two names; name independent masters, each once";
        Err(Error::new(ErrorKind::Configuration, message).on(ENGINE))
    }
}

/// One node, as soon as it is reached.
pub(super) struct NodeHandle {
    pub(super) redis: OnceLock<Arc<RedisBackend>>,
    /// The first attempt has ended.
    tried: watch::Sender<bool>,
    /// Until when a claim waits for the first attempt.
    pub(super) until: OnceLock<Moment>,
    clock: Clock,
}

impl NodeHandle {
    pub(super) fn new(clock: &Clock) -> NodeHandle {
        let (redis, tried, until) = (OnceLock::new(), watch::Sender::new(false), OnceLock::new());
        NodeHandle { redis, tried, until, clock: clock.clone() }
    }

    /// Takes the node in.
    pub(super) fn with(&self, client: Arc<RedisClient>, runs: &Runs) -> Result<()> {
        let distinct = runs.add(&client);
        if distinct.is_ok() {
            let _ = self.redis.set(Arc::new(RedisBackend { client }));
        }
        self.tried.send_replace(true);
        distinct
    }

    /// Connects in the background, again and again. Ends with the client.
    pub(super) fn keep_trying(
        self: &Arc<Self>,
        (config, max_ttl): (Config, Duration),
        runs: &Runs,
        runtime: &Runtime,
    ) {
        self.tried.send_replace(true);
        let (handle, runs, ours) = (Arc::downgrade(self), runs.clone(), runtime.clone());
        runtime.spawn(async move {
            while handle.strong_count() > 0 {
                ours.clock().sleep_until(ours.clock().now() + RETRY).await;
                if let Ok(client) = connect(config.clone(), ours.clone(), Some(max_ttl)).await {
                    let Some(handle) = handle.upgrade() else { return };
                    if let Err(error) = handle.with(client, &runs) {
                        tracing::error!(%error, "a node has no vote");
                    }
                    return;
                }
            }
        });
    }

    /// The node. While the client has just come, this waits for the first attempt to reach it.
    pub(super) async fn redis(&self) -> Result<&Arc<RedisBackend>> {
        if self.redis.get().is_none()
            && let Some(until) = self.until.get()
        {
            let mut tried = self.tried.subscribe();
            let _ = self.clock.within(*until, tried.wait_for(|tried| *tried)).await;
        }
        self.redis.get().ok_or_else(unreached)
    }
}

pub(super) fn unreached() -> Error {
    Error::new(ErrorKind::Unreachable, "this node was not reached yet").on(ENGINE)
}

/// A claim at a node that was not there when it was made, and may come while it is asked for.
pub(super) struct Unreached {
    handle: Arc<NodeHandle>,
    claim: Arc<Claim>,
    how: How,
    /// Since the node was there.
    entry: Option<Entry>,
}

impl Unreached {
    pub(super) fn of(node: &Node, claim: Arc<Claim>, how: How) -> Unreached {
        Unreached { handle: Arc::clone(&node.handle), claim, how, entry: None }
    }

    fn entry(&mut self) -> Option<&mut Entry> {
        if self.entry.is_none() {
            let redis = Arc::clone(self.handle.redis.get()?);
            self.entry = Some(redis.entry(Arc::clone(&self.claim), self.how));
        }
        self.entry.as_mut()
    }

    /// Returns the entry at the node. While the client has just come, this waits for the first attempt to reach the node.
    async fn reached(&mut self) -> Result<&mut Entry> {
        self.handle.redis().await?;
        self.entry().ok_or_else(unreached)
    }
}

impl Place for Unreached {
    fn ask(&mut self) -> Request<'_, Attempt> {
        if self.entry.is_some() {
            return self.entry().map_or_else(|| Request::ready(Err(unreached())), Place::ask);
        }
        // Dropped here nothing was sent, or the node's own request was.
        Request::drops(async move { self.reached().await?.ask().await })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.as_mut().map_or(Poll::Pending, |entry| entry.poll_news(cx))
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        // A lease was granted to another client, so it may be at the node although this one has sent nothing there.
        let may_be_there = how == Leave::Detach || self.how == How::Attach;
        if self.entry().is_none() && !may_be_there {
            return Request::ready(Ok(Found::Nothing.into()));
        }
        // Dropped here nothing was sent, or the node's own request was.
        Request::drops(async move { self.reached().await?.leave(how, may_have_left).await })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.as_ref()?.session(holds)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        self.entry().map_or_else(|| Request::ready(Err(unreached())), |entry| entry.convert(to))
    }

    fn abandon(&mut self, asking: bool) {
        if let Some(entry) = &mut self.entry {
            entry.abandon(asking);
        }
    }
}
