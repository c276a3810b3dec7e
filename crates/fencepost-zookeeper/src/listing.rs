//! What operators see: the contenders of a lock, and the locks that have some.

use fencepost_core::queue::{Place, winners};
use fencepost_core::{Info, Listing, Mode, Name, Page, Payload, Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::child::{Child, line};
use crate::error::failure;
use crate::layout::{LEASES, LOCKS};
use crate::link::Link;
use crate::name::from_node;
use crate::shared::Shared;

/// So many requests are under way at once.
const AT_ONCE: usize = 256;

/// A contender and what its nodes say.
pub(crate) struct Seen {
    /// Its nodes: one, or as many as it has permits.
    pub(crate) paths: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) holds: bool,
    pub(crate) stat: zk::Stat,
    pub(crate) payload: Payload,
}

impl Seen {
    pub(crate) fn token(&self) -> Token {
        Token::new(self.stat.czxid as u64)
    }
}

/// A node of a folder.
struct Node {
    path: String,
    mode: Mode,
    stat: zk::Stat,
    payload: Payload,
}

/// Everybody who claims a lock: holders first, then those who wait, in order.
pub(crate) async fn look(shared: &Shared, link: &Link, name: &Name) -> Result<Vec<Seen>> {
    let folder = shared.folder(name);
    let names = list(link, folder.clone()).await?;
    let has = |sub: &str| shared.config.layout.has_permits() && names.iter().any(|name| name == sub);
    let line_nodes = nodes(link, &folder, line(&names)).await?;
    let (mut leases, mut queue) = (Vec::new(), Vec::new());
    if has(LEASES) {
        let folder = format!("{folder}/{LEASES}");
        leases = nodes(link, &folder, line(&list(link, folder.clone()).await?)).await?;
    }
    if has(LOCKS) {
        let folder = format!("{folder}/{LOCKS}");
        queue = nodes(link, &folder, line(&list(link, folder.clone()).await?)).await?;
    }
    Ok(judge(line_nodes, leases, queue))
}

fn judge(line: Vec<Node>, leases: Vec<Node>, queue: Vec<Node>) -> Vec<Seen> {
    let places: Vec<_> =
        line.iter().enumerate().map(|(key, node)| Place { key, mode: node.mode, holds: false }).collect();
    let first = winners(&places).count();
    let oldest = |nodes: &[Node]| nodes.iter().map(|node| node.stat.czxid).min().unwrap_or(i64::MAX);
    let (oldest_in_line, oldest_lease) = (oldest(&line), oldest(&leases));
    // All say the same number; who says none takes the others' word.
    let told = leases.iter().filter_map(|node| match node.payload.mode {
        Some(Mode::Permits { of, .. }) => Some(of),
        _ => None,
    });
    let of = told.max().unwrap_or_else(|| u32::try_from(leases.len()).unwrap_or(u32::MAX));
    let mut all = Vec::new();
    let mut taken = 0;
    for node in leases {
        taken += 1;
        let holds = taken <= of && node.stat.czxid < oldest_in_line;
        // The permits of one claim are made by one transaction.
        let same = |seen: &&mut Seen| {
            seen.stat.czxid == node.stat.czxid && seen.stat.ephemeral_owner == node.stat.ephemeral_owner
        };
        match all.last_mut().filter(same) {
            Some(Seen { paths, mode: Mode::Permits { n, .. }, holds: all_hold, .. }) => {
                paths.push(node.path);
                *n += 1;
                *all_hold &= holds;
            }
            _ => all.push(seen(node, Mode::Permits { n: 1, of }, holds)),
        }
    }
    for node in queue {
        // Whose turn it is has leases as well, and is seen by those.
        let known = node.payload.id.is_some() && all.iter().any(|seen| seen.payload.id == node.payload.id);
        if !known {
            let mode = node.payload.mode.unwrap_or(Mode::Permits { n: 1, of });
            all.push(seen(node, mode, false));
        }
    }
    for (at, node) in line.into_iter().enumerate() {
        let holds = at < first && node.stat.czxid < oldest_lease;
        let mode = node.mode;
        all.push(seen(node, mode, holds));
    }
    all.sort_by_key(|seen| (!seen.holds, seen.stat.czxid));
    all
}

fn seen(node: Node, mode: Mode, holds: bool) -> Seen {
    Seen { paths: vec![node.path], mode, holds, stat: node.stat, payload: node.payload }
}

/// The names in a folder; none if it is not there.
async fn list(link: &Link, folder: String) -> Result<Vec<String>> {
    match link.within(link.list(folder)).await? {
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        names => names.map_err(|error| failure(&error)),
    }
}

/// What stands in the nodes; those that have gone meanwhile are left out.
async fn nodes(link: &Link, folder: &str, line: Vec<Child>) -> Result<Vec<Node>> {
    let mut nodes = Vec::with_capacity(line.len());
    for some in line.chunks(AT_ONCE) {
        let asked = some.iter().map(|child| link.data(format!("{folder}/{}", child.name)));
        for (child, answer) in some.iter().zip(link.within(join_all(asked)).await?) {
            match answer {
                Ok((data, stat)) => nodes.push(Node {
                    path: format!("{folder}/{}", child.name),
                    mode: child.mode,
                    stat,
                    payload: Payload::read(&data),
                }),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    Ok(nodes)
}

fn info(shared: &Shared, name: Name, all: Vec<Seen>) -> Info {
    let now = shared.aid.clock().wall_micros();
    let claims = all.into_iter().map(|seen| {
        let token = seen.holds.then(|| seen.token());
        let since = u64::try_from(seen.stat.ctime).unwrap_or(0).saturating_mul(1_000);
        seen.payload.into_info(seen.mode, token, now, since)
    });
    Info { name, last_token: None, claims: claims.collect() }
}

/// A resource as an operator sees it.
///
/// # Cancel safety
/// Safe: it only reads.
pub(crate) async fn inspect(shared: &Shared, name: &Name) -> Result<Info> {
    let link = shared.link().await?;
    let all = look(shared, &link, name).await?;
    Ok(info(shared, name.clone(), all))
}

/// A page of the resources that somebody claims.
///
/// # Cancel safety
/// Safe: it only reads.
pub(crate) async fn all(shared: &Shared, prefix: &str, page: &Page) -> Result<Listing> {
    let link = shared.link().await?;
    let root = &shared.config.root;
    let folder = shared.config.layout.parent(root);
    let mut names: Vec<_> = list(&link, folder)
        .await?
        .iter()
        .filter_map(|node| from_node(node, root.is_empty()))
        .filter(|name| name.starts_with(prefix))
        .filter_map(|name| Name::new(&name).ok())
        .filter(|name| page.after.as_ref().is_none_or(|after| name > after))
        .collect();
    names.sort_unstable();
    let mut listing = Listing::default();
    for (at, some) in names.chunks(16).enumerate() {
        let looks = join_all(some.iter().map(|name| look(shared, &link, name))).await;
        for (within, (name, seen)) in some.iter().zip(looks).enumerate() {
            let seen = seen?;
            if seen.is_empty() {
                continue;
            }
            listing.resources.push(info(shared, name.clone(), seen));
            if listing.resources.len() == page.limit {
                let more = at * 16 + within + 1 < names.len();
                listing.next = more.then(|| name.clone());
                return Ok(listing);
            }
        }
    }
    Ok(listing)
}
