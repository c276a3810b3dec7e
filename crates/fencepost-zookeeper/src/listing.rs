//! What operators see: the contenders of a lock, and the locks that have some.

use fencepost_core::backend::admission::{Place, winners};
use fencepost_core::{ClaimInfo, ClaimRecord, ErrorKind, Info, Listing, Mode, Name, Page, Result, Token};
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
    /// Its place in the line for a permit, if it has not left that yet.
    pub(crate) place: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) holds: bool,
    pub(crate) stat: zk::Stat,
    pub(crate) payload: ClaimRecord,
}

impl Seen {
    pub(crate) fn token(&self) -> Token {
        Token::new(place(&self.payload, &self.stat))
    }
}

/// The transaction that gave a claim its place in line. A permit's leases are made later, and say it.
fn place(payload: &ClaimRecord, stat: &zk::Stat) -> u64 {
    payload.place.unwrap_or(stat.czxid.cast_unsigned())
}

/// A node of a folder.
struct Node {
    path: String,
    mode: Mode,
    stat: zk::Stat,
    payload: ClaimRecord,
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
    let oldest = |nodes: &[Node]| nodes.iter().map(|node| place(&node.payload, &node.stat)).min();
    let oldest_in_line = oldest(&line).unwrap_or(u64::MAX);
    let oldest_permit = oldest(&leases).into_iter().chain(oldest(&queue)).min().unwrap_or(u64::MAX);
    // Each is judged by the number it says; who says none takes the others' word.
    let own = |node: &Node| match node.payload.mode {
        Some(Mode::Permits { of, .. }) => Some(of),
        _ => None,
    };
    let told = leases.iter().filter_map(own);
    let waits = queue.first().and_then(|head| of_the_head(head, &leases));
    let of = told
        .max()
        .unwrap_or_else(|| u32::try_from(leases.len() - usize::from(waits.is_some())).unwrap_or(u32::MAX));
    let mut all = Vec::new();
    let mut taken = 0;
    for node in leases {
        taken += 1;
        // Who has come by a permit stays so, because those before it only get fewer.
        let of = own(&node).unwrap_or(of);
        let holds = taken <= of && place(&node.payload, &node.stat) < oldest_in_line;
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
    for (at, node) in queue.into_iter().enumerate() {
        // Whose turn it is has leases as well, and is seen by those.
        let same = |seen: &&mut Seen| match node.payload.id {
            Some(id) => seen.payload.id == Some(id),
            None => at == 0 && !seen.holds && waits == Some(seen.stat.czxid),
        };
        match all.iter_mut().find(same) {
            Some(seen) => seen.place = Some(node.path),
            None => {
                let mode = node.payload.mode.unwrap_or(Mode::Permits { n: 1, of });
                all.push(seen(node, mode, false));
            }
        }
    }
    for (at, node) in line.into_iter().enumerate() {
        let holds = at < first && place(&node.payload, &node.stat) < oldest_permit;
        let mode = node.mode;
        all.push(seen(node, mode, holds));
    }
    all.sort_by_key(|seen| (!seen.holds, seen.token()));
    all
}

/// The lease of the first in line for a permit, where its node does not say whose it is: the newest of the same session, made
/// after its place in line. Nobody else makes leases meanwhile, and who is granted one leaves the line.
fn of_the_head(head: &Node, leases: &[Node]) -> Option<i64> {
    let own =
        |node: &&Node| node.payload.id.is_none() && node.stat.ephemeral_owner == head.stat.ephemeral_owner;
    let newest = leases.iter().filter(own).map(|node| node.stat.czxid).max();
    newest.filter(|czxid| head.payload.id.is_none() && *czxid > head.stat.czxid)
}

fn seen(node: Node, mode: Mode, holds: bool) -> Seen {
    Seen { paths: vec![node.path], place: None, mode, holds, stat: node.stat, payload: node.payload }
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
                    payload: ClaimRecord::read(&data),
                }),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    Ok(nodes)
}

fn info(shared: &Shared, name: Name, all: Vec<Seen>) -> Info {
    let now = shared.runtime.clock().wall_micros();
    let claims = all.into_iter().map(|seen| {
        let token = seen.holds.then(|| seen.token());
        let since = u64::try_from(seen.stat.ctime).unwrap_or(0).saturating_mul(1_000);
        let endless = seen.stat.ephemeral_owner == 0;
        ClaimInfo { endless, ..seen.payload.into_info(seen.mode, token, now, since) }
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
            let seen = match seen {
                Err(error) if error.kind() == ErrorKind::Denied => {
                    tracing::warn!(%name, "left out: this user may not read its nodes");
                    continue;
                }
                seen => seen?,
            };
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

#[cfg(test)]
mod tests {
    use fencepost_core::ClaimId;

    use super::*;

    /// A node of `session`, made by the transaction `czxid`, with what Curator writes there: an address.
    fn node(folder: &str, czxid: i64, session: i64) -> Node {
        let stat = zk::Stat { czxid, ephemeral_owner: session, ..stat() };
        Node {
            path: format!("{folder}/{czxid}"),
            mode: Mode::Exclusive,
            stat,
            payload: ClaimRecord::read(b"10.0.0.1"),
        }
    }

    /// One of ours, a permit of three.
    fn ours(folder: &str, czxid: i64, session: i64, id: u128) -> Node {
        let mut node = node(folder, czxid, session);
        node.payload.id = Some(ClaimId::from_u128(id));
        node.payload.mode = Some(Mode::Permits { n: 1, of: 3 });
        node
    }

    fn stat() -> zk::Stat {
        zk::Stat {
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    /// Transactions of those who hold, and of those who wait.
    fn told(leases: Vec<Node>, queue: Vec<Node>) -> (Vec<i64>, Vec<i64>) {
        let all = judge(Vec::new(), leases, queue);
        let of = |holds| all.iter().filter(|seen| seen.holds == holds).map(|seen| seen.stat.czxid).collect();
        (of(true), of(false))
    }

    #[test]
    fn who_is_first_in_line_and_has_its_lease_there_waits_once() {
        let leases = vec![
            ours("leases", 2, 1, 7),
            ours("leases", 2, 1, 7),
            node("leases", 4, 2),
            node("leases", 6, 3),
        ];
        let all = judge(Vec::new(), leases, vec![node("locks", 5, 3)]);
        assert_eq!(all.len(), 3);
        assert_eq!((all[2].holds, all[2].place.as_deref()), (false, Some("locks/5")));
        assert_eq!(all[2].paths, ["leases/6"]);
    }

    #[test]
    fn those_behind_the_first_wait_each() {
        let leases = || {
            vec![ours("leases", 2, 1, 7), node("leases", 3, 2), node("leases", 4, 2), node("leases", 8, 2)]
        };
        // All of one session; the first has its lease, or not yet.
        let queue = || vec![node("locks", 5, 2), node("locks", 6, 2), node("locks", 7, 3)];
        assert_eq!(told(leases(), queue()), (vec![2, 3, 4], vec![6, 7, 8]));
        let mut leases = leases();
        leases.pop();
        assert_eq!(told(leases, queue()), (vec![2, 3, 4], vec![5, 6, 7]));
    }

    #[test]
    fn a_lease_of_another_session_is_not_that_of_the_first() {
        let leases =
            vec![ours("leases", 2, 1, 7), node("leases", 3, 2), node("leases", 4, 2), node("leases", 6, 2)];
        assert_eq!(told(leases, vec![node("locks", 5, 3)]), (vec![2, 3, 4], vec![5, 6]));
    }

    #[test]
    fn a_lease_that_is_granted_does_not_wait() {
        // Of the same session, before its first place in line has gone: one has a permit, the other none yet.
        let leases = vec![ours("leases", 2, 1, 7), node("leases", 6, 2)];
        assert_eq!(told(leases, vec![node("locks", 5, 2)]), (vec![2, 6], vec![5]));
    }

    #[test]
    fn without_a_word_on_how_many_there_are_the_first_in_line_waits_all_the_same() {
        let leases = || vec![node("leases", 2, 1), node("leases", 4, 2)];
        assert_eq!(told(leases(), vec![node("locks", 3, 2)]), (vec![2], vec![4]));
        assert_eq!(told(leases(), Vec::new()), (vec![2, 4], vec![]));
    }

    #[test]
    fn each_is_shown_with_the_number_it_says() {
        let node = |czxid, of| {
            let mut node = ours("leases", czxid, 1, czxid as u128);
            node.payload.mode = Some(Mode::Permits { n: 1, of });
            node
        };
        // The third is one of five; the fourth says three, and waits.
        let mut waits = ours("locks", 5, 1, 6);
        waits.payload.mode = Some(Mode::Permits { n: 1, of: 3 });
        let all = judge(Vec::new(), vec![node(2, 3), node(3, 3), node(4, 5), node(6, 3)], vec![waits]);
        let shown: Vec<_> = all.iter().map(|seen| (seen.stat.czxid, seen.holds, seen.mode)).collect();
        let mode = |of| Mode::Permits { n: 1, of };
        assert_eq!(shown, [(2, true, mode(3)), (3, true, mode(3)), (4, true, mode(5)), (6, false, mode(3))]);
    }

    #[test]
    fn ours_are_known_by_their_id() {
        let leases = vec![
            ours("leases", 2, 1, 7),
            ours("leases", 3, 1, 8),
            ours("leases", 4, 1, 9),
            ours("leases", 7, 1, 10),
        ];
        let queue = vec![ours("locks", 5, 1, 10), ours("locks", 6, 1, 11)];
        assert_eq!(told(leases, queue), (vec![2, 3, 4], vec![6, 7]));
    }
}
