//! Locks of different kinds that have the same name.
//!
//! Fencepost's claims of all kinds exclude each other. Other libraries keep the kinds apart: Curator's read-write lock does not count the
//! nodes of its mutex, and its mutex does not count those of a read-write lock or a semaphore. A claim that finds such a node is refused.
//!
//! Permits have folders of their own, each with its own numbers. So the order of claims of different kinds is that of the transactions
//! that made their nodes. A permit has a node in its queue (`locks`) first and its leases later, which say its position in the queue. A claim
//! makes its own node before it looks for others, so of two claims at least one sees the other. It lists `locks` before `leases`: a permit
//! that has left the queue by then has its leases.

use std::collections::HashMap;
use std::sync::MutexGuard;

use fencepost_core::sync::Mutex;
use fencepost_core::{ClaimRecord, Error, ErrorKind, Result, Token};
use futures_util::future::{join, join_all};
use zookeeper_client as zk;

use crate::error::{ENGINE, failure};
use crate::recipe::child::{Child, Kind};
use crate::recipe::layout::{LEASES, LOCKS};
use crate::session::Session;

/// The most nodes that are remembered.
const MAX_NODES: usize = 16_384;

/// Finds claims of other kinds. It remembers fencepost's own nodes: their paths, and their positions in the queue.
#[derive(Default)]
pub(crate) struct OtherKinds(Mutex<HashMap<String, u64>>);

/// Another kind of lock, and how to claim it.
struct Advice {
    used: &'static str,
    advice: &'static str,
}

const READ_WRITE: Advice = Advice {
    used: "a read-write lock",
    advice: "claim it with --write or --shared, in the library with an RwLock",
};
const PLAIN: Advice = Advice {
    used: "a plain lock",
    advice: "claim it without --write and --shared, in the library with a Mutex",
};
const SEMAPHORE: Advice =
    Advice { used: "a semaphore", advice: "claim it with --permits, in the library with a Semaphore" };
const NO_PERMITS: Advice = Advice {
    used: "a lock without permits",
    advice: "claim it without --permits, in the library with a Mutex or an RwLock",
};

/// The last of the earlier claims of other kinds.
pub(crate) enum Earlier {
    None,
    /// The path of its node.
    Node(String),
}

impl OtherKinds {
    /// Looks for permits that came before the claim at `position`.
    ///
    /// # Errors
    /// A node is another library's.
    pub(crate) async fn permits_before(
        &self,
        session: &Session,
        folder: &str,
        position: Token,
    ) -> Result<Earlier> {
        let paths = [LOCKS, LEASES].map(|sub| format!("{folder}/{sub}"));
        // The first poll sends both, in this order.
        let (locks, leases) =
            session.within(join(session.list(paths[0].clone()), session.list(paths[1].clone()))).await?;
        let (locks, leases) = (contenders(&paths[0], locks)?, contenders(&paths[1], leases)?);
        self.before(session, locks.into_iter().chain(leases).collect(), position, &SEMAPHORE).await
    }

    /// Looks for claims of other modes that came before the permit at `position`.
    ///
    /// # Errors
    /// A node is another library's.
    pub(crate) async fn others_before(
        &self,
        session: &Session,
        folder: &str,
        position: Token,
    ) -> Result<Earlier> {
        let names = session.within(session.list(folder.to_owned())).await?;
        self.before(session, contenders(folder, names)?, position, &NO_PERMITS).await
    }

    /// Refuses a claim beside `others`, nodes of the other kind in its folder, if one of them is another library's.
    ///
    /// # Errors
    /// One is.
    pub(crate) async fn check(&self, session: &Session, folder: &str, others: &[Child]) -> Result<()> {
        let Some(other) = others.first() else { return Ok(()) };
        let kind = if other.kind == Some(Kind::ReadWrite) { &READ_WRITE } else { &PLAIN };
        let paths = others.iter().map(|child| format!("{folder}/{}", child.name)).collect();
        self.positions(session, paths, kind).await.map(drop)
    }

    /// Returns the last of the nodes that came before `position`.
    async fn before(
        &self,
        session: &Session,
        paths: Vec<String>,
        position: Token,
        advice: &Advice,
    ) -> Result<Earlier> {
        let positions = self.positions(session, paths, advice).await?;
        let earlier = positions.into_iter().filter(|(_, other)| *other < position.get());
        let last = earlier.max_by_key(|(_, other)| *other);
        Ok(last.map_or(Earlier::None, |(path, _)| Earlier::Node(path)))
    }

    /// Returns the positions of nodes in the queue, without those that are gone.
    async fn positions(
        &self,
        session: &Session,
        paths: Vec<String>,
        advice: &Advice,
    ) -> Result<Vec<(String, u64)>> {
        let (mut positions, mut unknown) = (Vec::new(), Vec::new());
        {
            let known = self.known();
            for path in paths {
                match known.get(&path) {
                    Some(position) => positions.push((path, *position)),
                    None => unknown.push(path),
                }
            }
        }
        let read = positions.len();
        let requests = unknown.iter().map(|path| session.data(path.clone()));
        let answers = session.within(join_all(requests)).await?;
        for (path, answer) in unknown.into_iter().zip(answers) {
            let (data, stat) = match answer {
                Err(zk::Error::NoNode) => continue,
                answer => answer.map_err(|error| failure(&error))?,
            };
            let record = ClaimRecord::read(&data)?;
            if record.id.is_none() {
                return Err(foreign(&path, &record.holder.label, advice));
            }
            positions.push((path, record.position.unwrap_or(stat.czxid.cast_unsigned())));
        }
        let mut known = self.known();
        if known.len() + positions.len() > MAX_NODES {
            known.clear();
        }
        known.extend(positions[read..].iter().cloned());
        Ok(positions)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.lock()
    }
}

fn contenders(folder: &str, names: Result<Vec<String>, zk::Error>) -> Result<Vec<String>> {
    match names {
        Ok(names) => {
            let names = names.iter().filter(|name| Child::read(name).is_some());
            Ok(names.map(|name| format!("{folder}/{name}")).collect())
        }
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(failure(&error)),
    }
}

fn foreign(path: &str, label: &str, advice: &Advice) -> Error {
    let Advice { used, advice } = advice;
    let message = format!(
        "another library uses this name as {used} ({label}, node {path}), and its claims do not exclude other kinds; {advice}"
    );
    Error::new(ErrorKind::Configuration, message).on(ENGINE)
}
