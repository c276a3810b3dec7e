//! Redlock: a majority of independent Redis masters.
//!
//! `redlock:URL,URL…` takes the full URLs of the nodes, one server each, separated by commas; options after a `?` at the end
//! are those of every node, and `max_ttl=` (seconds, 60 by default) is the longest lease of the deployment. All clients give the
//! same nodes. `node_timeout=` (250 ms by default) is how long an operation waits for nodes that do not answer.
//!
//! A node that is new, restarted or lost its data grants nothing until the longest lease has expired, since it may have forgotten a
//! grant. It is known by a marker that holds the run id of the server. [`vouch`] lets new nodes in at once.
//! A URL leads to the server itself, not to a proxy that spreads commands over several.
//!
//! Guaranteed: one holder as long as no majority of the nodes loses what it granted at the same time, and clocks that run no faster
//! than the margin of a lease; tokens that grow unless a majority lost its data and its clocks stepped back, or the nodes' clocks are
//! more than `max_ttl` apart. Not: order of arrival. Nodes hand nothing over, since two that chose differently would lock each other
//! out: a release tells the oldest of those who were refused to ask again.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, ClaimInfo, Entry, Error, Eviction, How, Info, Listing, Name,
    Operator, Page, Record, RecordKind, RecordStore, Reply, Report, Result, Runtime, StoredRecord, Token,
    Tokens,
};
use fencepost_quorum::Quorum;
use futures_util::future::{join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;

use crate::backend::connect;
use crate::client::RedisClient;
use crate::config::{Config, MAX_TTL, Servers};
use crate::conn::call::{Call, CallError, Lane};
use crate::doctor::examine;
use crate::operator;
use crate::script::answer::{ScriptReply, list, nonsense, pause, stays_out};
use crate::script::queue::{LEAVE, Setting};
use crate::script::record;
use crate::script::records::RedisRecords;
use crate::script::vote::{REFUSED, VOTES, VOUCH};

pub(crate) mod marker;
mod node;

use node::{NodeHandle, Runs, Unreached, unreached};

/// The scheme.
pub const SCHEME: &str = "redlock";
const ENGINE: &str = "redlock";
/// How long a claim of a new client waits for a node that is still being connected: each vote makes a lock safer, and permits need
/// more than a majority. A majority that is there waits for nobody.
const GRACE: Duration = Duration::from_millis(500);

/// Opens the quorum that a URL names: register it as `Registry::new().with("redlock", fencepost_redis::redlock::open)`.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule, and what the first node says if no majority can be reached.
///
/// # Cancel safety
/// May be dropped; nothing stays at the servers.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let ((configs, max_ttl), patience) =
        match parse(&address).and_then(|parsed| Ok((parsed, patience(&address)?))) {
            Ok(parsed) => parsed,
            Err(error) => return Reply::ready(Err(error)),
        };
    Reply::coming(async move {
        let nodes: Vec<Node> =
            configs.into_iter().map(|config| Node::new(config, max_ttl, &runtime)).collect();
        let need = nodes.len() / 2 + 1;
        meet(&nodes, need, &runtime).await?;
        let nodes = nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn Backend>).collect();
        let quorum = Quorum::new(ENGINE, nodes, runtime.clock().clone())?;
        Ok(Arc::new(quorum.with_patience(patience)) as Arc<dyn Backend>)
    })
}

/// Connects to all nodes, and returns as soon as `need` of them are there. The others go on in the background.
async fn meet(nodes: &[Node], need: usize, runtime: &Runtime) -> Result<()> {
    let until = runtime.clock().now() + GRACE;
    let runs = Runs::default();
    let opening = nodes.iter().map(|node| {
        let _ = node.handle.until.set(until);
        let (handle, config) = (Arc::clone(&node.handle), node.config.clone());
        let opening = connect(config.clone(), runtime.clone(), Some(node.max_ttl));
        let retry = (config, node.max_ttl);
        async move { (handle, retry, opening.await) }
    });
    let mut opening: FuturesUnordered<_> = opening.collect();
    let (mut met, mut first) = (0, None);
    // Dropped here nothing stays at the servers.
    while met < need
        && let Some((handle, retry, answer)) = opening.next().await
    {
        match answer {
            Ok(client) => {
                handle.with(client, &runs)?;
                met += 1;
            }
            Err(error) => {
                first.get_or_insert(error);
                handle.keep_trying(retry, &runs, runtime);
            }
        }
    }
    if met < need {
        return Err(first.unwrap_or_else(unreached));
    }
    let ours = runtime.clone();
    runtime.spawn(async move {
        while let Some((handle, retry, answer)) = opening.next().await {
            if answer.and_then(|client| handle.with(client, &runs)).is_err() {
                handle.keep_trying(retry, &runs, &ours);
            }
        }
    });
    Ok(())
}

/// Looks at the nodes, whether a majority can be reached or not.
pub(crate) async fn examined(address: &BackendUrl, runtime: Runtime) -> Result<Report> {
    let (configs, max_ttl) = parse(address)?;
    let node = |config| Arc::new(Node::new(config, max_ttl, &runtime)) as _;
    Quorum::new(ENGINE, configs.into_iter().map(node).collect(), runtime.clock().clone())?.examine().await
}

/// Says that the nodes of `url` have lost nothing, or that nobody holds anything there: they grant at once. For a new
/// deployment, and after a restart of which the operator knows that it lost no data. Wrong, it can let two hold one lock.
///
/// # Errors
/// A bad URL, or what the first node says that could not be reached; the others are vouched for.
///
/// # Cancel safety
/// Dropped midway, some are vouched for.
pub async fn vouch(url: &str, runtime: Runtime) -> Result<()> {
    let (configs, max_ttl) = parse(&BackendUrl::parse(url)?)?;
    let each = configs.into_iter().map(|config| {
        let runtime = runtime.clone();
        async move {
            let client = connect(config, runtime, Some(max_ttl)).await?;
            let call = Call::new(&VOUCH, 0, client.setting.vouch());
            let answer = client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error);
            client.deployment.close().await;
            answer.map(|_| ())
        }
    });
    join_all(each).await.into_iter().collect()
}

/// Returns how long an operation waits for nodes that do not answer.
fn patience(address: &BackendUrl) -> Result<Duration> {
    let rule = "1ms to 60s, as in 250ms or 2s";
    let given = address.duration("node_timeout", &["ms", "s"], 1..=60_000, rule);
    Ok(given.map_err(|error| error.on(ENGINE))?.unwrap_or(Quorum::PATIENCE))
}

pub(crate) fn parse(address: &BackendUrl) -> Result<(Vec<Config>, Duration)> {
    let invalid = |message: &str| Error::invalid(message).on(ENGINE);
    let max_ttl = match address.option("max_ttl") {
        None => MAX_TTL,
        Some(text) => {
            let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
            Duration::from_secs(seconds.ok_or_else(|| invalid("max_ttl is a number of seconds, 1 to 86400"))?)
        }
    };
    let mut configs = Vec::new();
    for url in address.rest.split(',') {
        let node = BackendUrl::parse(url)?.with_options_of(address, &["max_ttl", "node_timeout"]);
        let config = Config::parse(&node)?;
        if !matches!(config.servers, Servers::One(_)) {
            return Err(invalid("a node of a quorum is one server: redis:, rediss: or redis+unix:"));
        }
        if config.replicas > 0 {
            return Err(invalid("a node of a quorum waits for no replicas; leave out replicas="));
        }
        // Another database of the same server is no other node: both are lost together.
        if configs.iter().any(|known: &Config| known.servers == config.servers) {
            return Err(invalid("a node stands twice in the URL; each has one vote"));
        }
        configs.push(config);
    }
    if configs.len() < 3 {
        return Err(invalid("a quorum has three nodes or more: redlock:redis://a,redis://b,redis://c"));
    }
    Ok((configs, max_ttl))
}

/// One master, which may not have been reached yet.
struct Node {
    handle: Arc<NodeHandle>,
    max_ttl: Duration,
    config: Config,
    runtime: Runtime,
}

impl Node {
    fn new(config: Config, max_ttl: Duration, runtime: &Runtime) -> Node {
        Node { handle: Arc::new(NodeHandle::new(runtime.clock())), max_ttl, config, runtime: runtime.clone() }
    }
}

impl Backend for Node {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(ENGINE);
        capabilities.history = false;
        capabilities.upgrade = false;
        capabilities.tokens = Tokens::ClockBounded;
        capabilities.clock_tokens = true;
        capabilities.max_ttl = self.max_ttl;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        match self.handle.redis.get() {
            Some(redis) => Arc::clone(redis).entry(claim, how),
            None => {
                let place = Unreached::of(&self, Arc::clone(&claim), how);
                Entry::new(claim, how, place)
            }
        }
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::coming(async { self.handle.redis().await?.reach().await })
    }

    fn leave_caller_runtime(&self) {
        if let Some(redis) = self.handle.redis.get() {
            redis.leave_caller_runtime();
        }
    }

    fn close(&self) -> Reply<'_, ()> {
        self.handle.redis.get().map_or_else(|| Reply::ready(()), |redis| redis.close())
    }
}

impl Operator for Node {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(async move {
            let redis = self.handle.redis().await?;
            let names = std::slice::from_ref(name);
            let info = operator::inspect(&redis.client, name);
            let (info, refused) = join(info, refused(&redis.client, names)).await;
            let mut info = info?;
            info.claims.extend(refused?.into_iter().flatten());
            ensure_votes(&redis.client).await?;
            Ok(info)
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        Reply::coming(async move {
            let redis = self.handle.redis().await?;
            let mut listing = redis.list(prefix, page).await?;
            let names: Vec<_> = listing.resources.iter().map(|info| info.name.clone()).collect();
            let refused = refused(&redis.client, &names).await?;
            for (info, refused) in listing.resources.iter_mut().zip(refused) {
                info.claims.extend(refused);
            }
            ensure_votes(&redis.client).await?;
            Ok(listing)
        })
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let redis = self.handle.redis().await?;
            if let Err(error) = redis.evict(name, token, how).await {
                // A node that may have forgotten the grant does not know that it is gone.
                if error.is_mismatch() {
                    ensure_votes(&redis.client).await?;
                }
                return Err(error);
            }
            if how.now {
                let (key, slot) = redis.client.key(name);
                let call = Call::new(&LEAVE, slot, redis.client.setting.freed(&key));
                // Dropped here, or failed: a waiter asks again by itself, only later.
                let _ = redis.client.deployment.call(Lane::Caller, &call).await;
            }
            Ok(())
        })
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::new(NodeRecords { handle: Arc::clone(&self.handle), max_ttl: self.max_ttl }))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine(self.config.clone(), &self.runtime, Some(self.max_ttl)))
    }
}

/// The records at a node.
struct NodeRecords {
    handle: Arc<NodeHandle>,
    max_ttl: Duration,
}

impl NodeRecords {
    async fn store(&self) -> Result<RedisRecords> {
        let client = Arc::clone(&self.handle.redis().await?.client);
        Ok(RedisRecords { client, node: Some(self.max_ttl) })
    }
}

impl RecordStore for NodeRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(async move { self.store().await?.read(kind, name).await })
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(async move { self.store().await?.write(kind, name, record, version).await })
    }
}

/// Fails if the node may have forgotten a grant, because what it shows then is no answer. It is asked after it was read: it may lose its data
/// in between.
async fn ensure_votes(client: &RedisClient) -> Result<()> {
    let call = Call::new(&VOTES, 0, client.setting.votes());
    // Dropped here, the node may have begun the time for which it stays out, as it does with the next request.
    let value = client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
    let reply = ScriptReply::read(&value)?;
    match (reply.status, &*reply.numbers) {
        (b"DONE", []) => Ok(()),
        (b"AWAY", [ms]) => Err(stays_out(pause(*ms).unwrap_or_default())),
        _ => Err(reply.nonsense()),
    }
}

/// Returns the claims that wait for each of these names.
async fn refused(client: &RedisClient, names: &[Name]) -> Result<Vec<Vec<ClaimInfo>>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = names.iter().map(|name| Setting::refused_key(&client.key(name).0)).collect();
    let call = Call::new(&REFUSED, 0, client.setting.read_refused(&keys));
    let value = client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
    let (now, each) = list(&value)?;
    let read = |entries: &Value| match entries {
        Value::Array(entries) => Ok(record::refused(entries, now)),
        other => Err(nonsense(other)),
    };
    each.iter().map(read).collect()
}
