//! Lists the contenders of a lock, and the locks that have some.

use fencepost_core::backend::admission::{Claimant, winners};
use fencepost_core::{ClaimRecord, ErrorKind, Info, Listing, Mode, Name, Page, Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::client::Client;
use crate::error::failure;
use crate::recipe::child::queue;
use crate::recipe::layout::{LEASES, LOCKS};
use crate::recipe::names::from_node;
use crate::session::Session;

/// The most requests that are under way at once.
const AT_ONCE: usize = 256;
/// The number of locks that are looked at together.
const LOCKS_AT_ONCE: usize = 16;

/// A claim, as its nodes show it.
pub(crate) struct Contender {
    /// The paths of its nodes: one, or one for each permit.
    pub(crate) paths: Vec<String>,
    /// The path of its node in the queue for a permit, while it has leases as well.
    pub(crate) queued: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) holds: bool,
    pub(crate) stat: zk::Stat,
    pub(crate) record: ClaimRecord,
}

impl Contender {
    fn new(node: Node, mode: Mode, holds: bool) -> Contender {
        Contender { paths: vec![node.path], queued: None, mode, holds, stat: node.stat, record: node.record }
    }

    pub(crate) fn token(&self) -> Token {
        Token::new(position(&self.record, &self.stat))
    }
}

/// Returns the transaction that gave a claim its position in the queue. A permit's leases are made later, and say it.
fn position(record: &ClaimRecord, stat: &zk::Stat) -> u64 {
    record.position.unwrap_or(stat.czxid.cast_unsigned())
}

/// A node of a folder.
struct Node {
    path: String,
    mode: Mode,
    stat: zk::Stat,
    record: ClaimRecord,
}

impl Node {
    fn position(&self) -> u64 {
        position(&self.record, &self.stat)
    }

    /// Returns the number of permits that the claim says there are.
    fn of(&self) -> Option<u32> {
        match self.record.mode {
            Some(Mode::Permits { of, .. }) => Some(of),
            _ => None,
        }
    }
}

/// Returns the claims of a lock: holders first, then waiters, in order.
pub(crate) async fn contenders(client: &Client, session: &Session, name: &Name) -> Result<Vec<Contender>> {
    let folder = client.folder(name);
    let names = list(session, folder.clone()).await?;
    let mut permits = [Vec::new(), Vec::new()];
    let plain = nodes(session, &folder, &names).await?;
    for (sub, nodes_of) in [LEASES, LOCKS].into_iter().zip(&mut permits) {
        if client.config.layout.has_permits() && names.iter().any(|name| name == sub) {
            let folder = format!("{folder}/{sub}");
            *nodes_of = nodes(session, &folder, &list(session, folder.clone()).await?).await?;
        }
    }
    let [leases, queued] = permits;
    Ok(arrange(plain, leases, queued))
}

/// Finds out who holds. `plain`: the nodes without permits; `queued`: those in the queue for permits.
fn arrange(plain: Vec<Node>, leases: Vec<Node>, queued: Vec<Node>) -> Vec<Contender> {
    let positions: Vec<_> =
        plain.iter().enumerate().map(|(key, node)| Claimant { key, mode: node.mode, holds: false }).collect();
    let first = winners(&positions).count();
    let oldest_plain = plain.iter().map(Node::position).min().unwrap_or(u64::MAX);
    let oldest_permit = leases.iter().chain(&queued).map(Node::position).min().unwrap_or(u64::MAX);
    let head = queued.first().and_then(|head| lease_of_head(head, &leases));
    // Each claim is judged by the number of permits that it says. For a claim that says none, the others' number counts.
    let said = leases.iter().filter_map(Node::of).max();
    let of =
        said.unwrap_or_else(|| u32::try_from(leases.len() - usize::from(head.is_some())).unwrap_or(u32::MAX));
    let mut all: Vec<Contender> = Vec::new();
    for (taken, node) in (1..).zip(leases) {
        // A claim that has come by a permit keeps it: the earlier ones only get fewer.
        let of = node.of().unwrap_or(of);
        let holds = taken <= of && node.position() < oldest_plain;
        // One transaction makes all permits of a claim.
        let same = |other: &&mut Contender| {
            other.stat.czxid == node.stat.czxid && other.stat.ephemeral_owner == node.stat.ephemeral_owner
        };
        match all.last_mut().filter(same) {
            Some(Contender { paths, mode: Mode::Permits { n, .. }, holds: all_hold, .. }) => {
                paths.push(node.path);
                *n += 1;
                *all_hold &= holds;
            }
            _ => all.push(Contender::new(node, Mode::Permits { n: 1, of }, holds)),
        }
    }
    for (at, node) in queued.into_iter().enumerate() {
        // The first in the queue may have leases as well.
        let same = |other: &&mut Contender| match node.record.id {
            Some(id) => other.record.id == Some(id),
            None => at == 0 && !other.holds && head == Some(other.stat.czxid),
        };
        match all.iter_mut().find(same) {
            Some(other) => other.queued = Some(node.path),
            None => {
                let mode = node.record.mode.unwrap_or(Mode::Permits { n: 1, of });
                all.push(Contender::new(node, mode, false));
            }
        }
    }
    for (at, node) in plain.into_iter().enumerate() {
        let holds = at < first && node.position() < oldest_permit;
        let mode = node.mode;
        all.push(Contender::new(node, mode, holds));
    }
    all.sort_by_key(|contender| (!contender.holds, contender.token()));
    all
}

/// Returns the transaction of the lease of the first in the queue, where its node does not say whose it is: the newest lease of the same
/// session, made after the position in the queue. No other claim makes leases meanwhile, and a claim with a permit leaves the queue.
fn lease_of_head(head: &Node, leases: &[Node]) -> Option<i64> {
    let own =
        |node: &&Node| node.record.id.is_none() && node.stat.ephemeral_owner == head.stat.ephemeral_owner;
    let newest = leases.iter().filter(own).map(|node| node.stat.czxid).max();
    newest.filter(|czxid| head.record.id.is_none() && *czxid > head.stat.czxid)
}

/// Returns the names in a folder; none if it is not there.
async fn list(session: &Session, folder: String) -> Result<Vec<String>> {
    match session.within(session.list(folder)).await? {
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        names => names.map_err(|error| failure(&error)),
    }
}

/// Reads the claims among `names`, in order; those that are gone meanwhile are left out.
async fn nodes(session: &Session, folder: &str, names: &[String]) -> Result<Vec<Node>> {
    let children = queue(names);
    let mut nodes = Vec::with_capacity(children.len());
    for some in children.chunks(AT_ONCE) {
        let requests = some.iter().map(|child| session.data(format!("{folder}/{}", child.name)));
        for (child, answer) in some.iter().zip(session.within(join_all(requests)).await?) {
            match answer {
                Ok((data, stat)) => nodes.push(Node {
                    path: format!("{folder}/{}", child.name),
                    mode: child.mode,
                    stat,
                    record: ClaimRecord::shown(&data),
                }),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    Ok(nodes)
}

fn info(client: &Client, name: Name, all: Vec<Contender>) -> Info {
    let now = client.runtime.clock().wall_micros();
    let claims = all.into_iter().map(|contender| {
        let token = contender.holds.then(|| contender.token());
        let since = u64::try_from(contender.stat.ctime).unwrap_or(0).saturating_mul(1_000);
        let endless = contender.stat.ephemeral_owner == 0;
        let mut info = contender.record.into_info(contender.mode, token, now, since);
        info.endless = endless;
        info
    });
    Info::new(name, None, claims.collect())
}

/// Returns a resource as an operator sees it.
///
/// # Cancel safety
/// Safe: it only reads.
pub(crate) async fn inspect(client: &Client, name: &Name) -> Result<Info> {
    let session = client.session().await?;
    let all = contenders(client, &session, name).await?;
    Ok(info(client, name.clone(), all))
}

/// Returns a page of the resources that have claims.
///
/// # Cancel safety
/// Safe: it only reads.
pub(crate) async fn all(client: &Client, prefix: &str, page: &Page) -> Result<Listing> {
    let session = client.session().await?;
    let root = &client.config.root;
    let folder = client.config.layout.parent(root);
    let mut names: Vec<_> = list(&session, folder)
        .await?
        .iter()
        .filter_map(|node| from_node(node, root.is_empty()))
        .filter(|name| name.starts_with(prefix))
        .filter_map(|name| Name::new(&name).ok())
        .filter(|name| page.begins_before(name))
        .collect();
    names.sort_unstable();
    let mut listing = Listing::default();
    for some in names.chunks(LOCKS_AT_ONCE) {
        let read = join_all(some.iter().map(|name| contenders(client, &session, name))).await;
        for (name, all) in some.iter().zip(read) {
            let all = match all {
                Err(error) if error.kind() == ErrorKind::Denied => {
                    tracing::warn!(%name, "left out: this user may not read its nodes");
                    continue;
                }
                all => all?,
            };
            if !listing.add(info(client, name.clone(), all), page) {
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
            record: ClaimRecord::foreign(b"10.0.0.1"),
        }
    }

    /// One of ours, a permit of three.
    fn ours(folder: &str, czxid: i64, session: i64, id: u128) -> Node {
        let mut node = node(folder, czxid, session);
        node.record.id = Some(ClaimId::from_u128(id));
        node.record.mode = Some(Mode::Permits { n: 1, of: 3 });
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
        let all = arrange(Vec::new(), leases, queue);
        let of = |holds| {
            all.iter()
                .filter(|contender| contender.holds == holds)
                .map(|contender| contender.stat.czxid)
                .collect()
        };
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
        let all = arrange(Vec::new(), leases, vec![node("locks", 5, 3)]);
        assert_eq!(all.len(), 3);
        assert_eq!((all[2].holds, all[2].queued.as_deref()), (false, Some("locks/5")));
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
        // Of the same session, before its first position in the queue has gone: one has a permit, the other none yet.
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
            node.record.mode = Some(Mode::Permits { n: 1, of });
            node
        };
        // The third is one of five; the fourth says three, and waits.
        let mut waits = ours("locks", 5, 1, 6);
        waits.record.mode = Some(Mode::Permits { n: 1, of: 3 });
        let all = arrange(Vec::new(), vec![node(2, 3), node(3, 3), node(4, 5), node(6, 3)], vec![waits]);
        let shown: Vec<_> =
            all.iter().map(|contender| (contender.stat.czxid, contender.holds, contender.mode)).collect();
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
