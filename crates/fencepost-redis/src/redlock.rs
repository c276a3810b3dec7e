//! Redlock: a majority of independent Redis masters.
//!
//! `redlock:URL,URL…` takes the full URLs of the nodes, one server each, separated by commas; options after a `?` at the end
//! are those of every node, and `max_ttl=` (seconds, 60 by default) is the longest lease of the deployment. All clients give the
//! same nodes.
//!
//! A node that is new, restarted or lost its data grants nothing until the longest lease is over, since it may have forgotten a
//! grant. It is known by a marker that holds the run id of the server. [`vouch`] lets new nodes in at once.
//! A URL leads to the server itself, not to a proxy that spreads commands over several.
//!
//! Guaranteed: one holder as long as no majority of the nodes loses what it granted at the same time, and clocks that run no faster
//! than the margin of a lease; tokens that grow unless a majority lost its data and its clocks stepped back, or the nodes' clocks are
//! more than `max_ttl` apart. Not: order of arrival. Nodes hand nothing over, since two that chose differently would lock each other
//! out: a release tells the oldest of those who were refused to ask again.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Address, Aid, Attempt, Backend, Capabilities, Claim, ClaimInfo, Clock, Entry, Error, ErrorKind, Eviction,
    Info, Left, Listing, Moment, Name, Page, Quorum, Reply, Report, Result, Stake, Token, Tokens,
};
use futures_util::future::{join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;

use crate::answer::nonsense;
use crate::backend::RedisBackend;
use crate::ballot::{FREED, VOUCH, WAITING};
use crate::config::{Config, Servers};
use crate::examine::examine;
use crate::line::Setting;
use crate::net::{Call, Lane, Trouble};
use crate::record;
use crate::shared::Shared;

/// The scheme.
pub const SCHEME: &str = "redlock";
const ENGINE: &str = "redlock";
/// The longest lease, unless the URL says another.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);
/// So long a client that has reached a majority waits for the others: each that it has makes its locks safer.
const GRACE: Duration = Duration::from_millis(500);
/// A node that cannot be reached at first is tried again so often.
const RETRY: Duration = Duration::from_millis(500);

/// Opens the quorum that a URL names: register it as `Registry::new().with("redlock", fencepost_redis::redlock::open)`.
///
/// # Errors
/// [`is_invalid`](Error::is_invalid) for a URL that breaks a rule, and what the first node says if no majority can be reached.
///
/// # Cancel safety
/// May be dropped; nothing stays at the servers.
pub fn open(address: Address, aid: Aid) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let (configs, max_ttl) = match parse(&address) {
        Ok(parsed) => parsed,
        Err(error) => return Reply::ready(Err(error)),
    };
    Reply::coming(async move {
        let need = configs.len() / 2 + 1;
        let mut nodes: Vec<Arc<dyn Backend>> = Vec::with_capacity(configs.len());
        let opening = configs.iter().map(|config| Shared::as_node(config.clone(), aid.clone(), max_ttl));
        let mut first = None;
        let mut opened = 0;
        let answers = some_of(opening, need, aid.clock()).await;
        are_distinct(answers.iter().flatten().flatten())?;
        for (answer, config) in answers.into_iter().zip(&configs) {
            let node = Node { redis: Arc::default(), max_ttl, config: config.clone(), aid: aid.clone() };
            match answer {
                Some(Ok(shared)) => {
                    opened += 1;
                    let _ = node.redis.set(RedisBackend { shared });
                }
                Some(Err(error)) => {
                    let _ = first.get_or_insert(error);
                    node.keep_trying();
                }
                None => node.keep_trying(),
            }
            nodes.push(Arc::new(node));
        }
        if let Some(error) = first
            && opened < need
        {
            return Err(error);
        }
        Ok(Arc::new(Quorum::new(ENGINE, nodes, aid.clock().clone())?) as Arc<dyn Backend>)
    })
}

/// What so many answered of these by the time that `need` of them had opened, and a little more: a node that hangs is left to the
/// background, and does not hold up the others.
async fn some_of<T>(
    opening: impl Iterator<Item = impl Future<Output = Result<T>>>,
    need: usize,
    clock: &Clock,
) -> Vec<Option<Result<T>>> {
    let opening: Vec<_> =
        opening.enumerate().map(|(node, opening)| async move { (node, opening.await) }).collect();
    let mut answers: Vec<_> = opening.iter().map(|_| None).collect();
    let mut opening: FuturesUnordered<_> = opening.into_iter().collect();
    let (mut opened, mut until) = (0, Moment::NEVER);
    // Dropped here, or when the time is over, nothing stays at the servers.
    while let Some(Some((node, answer))) = clock.within(until, opening.next()).await {
        opened += usize::from(answer.is_ok());
        answers[node] = Some(answer);
        if opened == need {
            until = until.min(clock.now() + GRACE);
        }
    }
    answers
}

/// Looks at the nodes, whether a majority can be reached or not.
pub(crate) async fn examined(address: &Address, aid: Aid) -> Result<Report> {
    let (configs, max_ttl) = parse(address)?;
    let node = |config| Arc::new(Node { redis: Arc::default(), max_ttl, config, aid: aid.clone() }) as _;
    Quorum::new(ENGINE, configs.into_iter().map(node).collect(), aid.clock().clone())?.examine().await
}

/// Two names of one server would have two votes of a quorum for one loss of data.
fn are_distinct<'a>(nodes: impl Iterator<Item = &'a Arc<Shared>>) -> Result<()> {
    let mut runs: Vec<_> = nodes.filter_map(|node| node.net.run()).collect();
    let count = runs.len();
    runs.sort_unstable();
    runs.dedup();
    if runs.len() == count {
        return Ok(());
    }
    let message = "two nodes of the URL are one server under two names; name independent masters, each once";
    Err(Error::new(ErrorKind::Configuration, message).on(ENGINE))
}

/// Says that the nodes of `url` have lost nothing, or that nobody holds anything there: they grant at once. For a new
/// deployment, and after a restart of which the operator knows that it lost no data. Wrong, it can let two hold one lock.
///
/// # Errors
/// A bad URL, or what the first node says that could not be reached; the others are vouched for.
///
/// # Cancel safety
/// Dropped midway, some are vouched for.
pub async fn vouch(url: &str, aid: Aid) -> Result<()> {
    let (configs, max_ttl) = parse(&Address::parse(url)?)?;
    let each = configs.into_iter().map(|config| {
        let aid = aid.clone();
        async move {
            let shared = Shared::as_node(config, aid, max_ttl).await?;
            let call = Call::new(&VOUCH, 0, shared.setting.vouch());
            let answer = shared.net.call(Lane::Caller, &call).await.map_err(Trouble::into_error);
            shared.net.close().await;
            answer.map(|_| ())
        }
    });
    join_all(each).await.into_iter().collect()
}

pub(crate) fn parse(address: &Address) -> Result<(Vec<Config>, Duration)> {
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
        let node = Address::parse(url)?.with_options_of(address, &["max_ttl"]);
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
    redis: Arc<OnceLock<RedisBackend>>,
    max_ttl: Duration,
    config: Config,
    aid: Aid,
}

impl Node {
    fn keep_trying(&self) {
        let (redis, max_ttl) = (Arc::downgrade(&self.redis), self.max_ttl);
        let (config, ours) = (self.config.clone(), self.aid.clone());
        self.aid.spawn(async move {
            while redis.strong_count() > 0 {
                ours.clock().sleep_until(ours.clock().now() + RETRY).await;
                if let Ok(shared) = Shared::as_node(config.clone(), ours.clone(), max_ttl).await {
                    if let Some(redis) = redis.upgrade() {
                        let _ = redis.set(RedisBackend { shared });
                    }
                    return;
                }
            }
        });
    }

    fn redis(&self) -> Result<&RedisBackend> {
        self.redis.get().ok_or_else(unreached)
    }
}

fn unreached() -> Error {
    Error::new(ErrorKind::Unreachable, "this node was not reached yet").on(ENGINE)
}

impl Backend for Node {
    fn capabilities(&self) -> Capabilities {
        Capabilities { tokens: Tokens::ClockBounded, max_ttl: self.max_ttl, ..Capabilities::full(ENGINE) }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        match self.redis.get() {
            Some(redis) => redis.enter(claim),
            None => Unreached::of(self, claim, false),
        }
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        match self.redis.get() {
            Some(redis) => redis.attach(claim),
            None => Unreached::of(self, claim, true),
        }
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        match self.redis() {
            Ok(redis) => Reply::coming(async move {
                let (info, refused) =
                    join(redis.inspect(name), refused(&redis.shared, std::slice::from_ref(name))).await;
                let mut info = info?;
                info.claims.extend(refused?.into_iter().flatten());
                Ok(info)
            }),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        match self.redis() {
            Ok(redis) => Reply::coming(async move {
                let mut listing = redis.list(prefix, page).await?;
                let names: Vec<_> = listing.resources.iter().map(|info| info.name.clone()).collect();
                let refused = refused(&redis.shared, &names).await?;
                for (info, refused) in listing.resources.iter_mut().zip(refused) {
                    info.claims.extend(refused);
                }
                Ok(listing)
            }),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        match self.redis() {
            Ok(redis) => Reply::coming(async move {
                redis.evict(name, token, how).await?;
                if how.now {
                    let (key, slot) = redis.shared.key(name);
                    let call = Call::new(&FREED, slot, redis.shared.setting.freed(&key));
                    // Dropped here, or failed: whoever waits asks again by itself, only later.
                    let _ = redis.shared.net.call(Lane::Caller, &call).await;
                }
                Ok(())
            }),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::coming(examine(self.config.clone(), &self.aid, Some(self.max_ttl)))
    }

    fn close(&self) -> Reply<'_, ()> {
        self.redis().map_or_else(|_| Reply::ready(()), Backend::close)
    }
}

/// Who waits for each of these.
async fn refused(shared: &Shared, names: &[Name]) -> Result<Vec<Vec<ClaimInfo>>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = names.iter().map(|name| Setting::refused(&shared.key(name).0)).collect();
    let call = Call::new(&WAITING, 0, shared.setting.waiting(&keys));
    let value = shared.net.call(Lane::Caller, &call).await.map_err(Trouble::into_error)?;
    let Value::Array(answers) = &value else { return Err(nonsense(&value)) };
    let Some((Value::Int(now), each)) = answers.split_first() else { return Err(nonsense(&value)) };
    let now = u64::try_from(*now).unwrap_or_default();
    let read = |entries: &Value| match entries {
        Value::Array(entries) => Ok(record::refused(entries, now)),
        other => Err(nonsense(other)),
    };
    each.iter().map(read).collect()
}

/// A claim at a node that was not there when it was made, and may come while it is asked for.
struct Unreached {
    redis: Arc<OnceLock<RedisBackend>>,
    claim: Arc<Claim>,
    attached: bool,
    /// Since the node was there.
    entry: Option<Box<dyn Entry>>,
}

impl Unreached {
    fn of(node: &Node, claim: Arc<Claim>, attached: bool) -> Box<dyn Entry> {
        Box::new(Unreached { redis: Arc::clone(&node.redis), claim, attached, entry: None })
    }

    fn entry(&mut self) -> Option<&mut dyn Entry> {
        if self.entry.is_none() {
            let (redis, claim) = (self.redis.get()?, Arc::clone(&self.claim));
            self.entry = Some(if self.attached { redis.attach(claim) } else { redis.enter(claim) });
        }
        match &mut self.entry {
            Some(entry) => Some(&mut **entry),
            None => None,
        }
    }
}

impl Entry for Unreached {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        self.entry().map_or_else(|| Reply::ready(Err(unreached())), |entry| entry.attempt())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()> {
        self.entry.as_mut().map_or(Poll::Pending, |entry| entry.poll_wait(cx, until))
    }

    fn stake(&self) -> Option<Stake> {
        self.entry.as_ref()?.stake()
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Left>> {
        self.entry().map_or_else(|| Reply::ready(Ok(Left::Nothing)), |entry| entry.withdraw())
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        self.entry().map_or_else(|| Reply::ready(Err(unreached())), |entry| entry.detach())
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.entry().map_or_else(|| Reply::ready(Err(unreached())), |entry| entry.raise(to))
    }
}
