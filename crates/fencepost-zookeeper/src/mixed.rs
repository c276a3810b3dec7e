//! Locks of different kinds that have the same name.
//!
//! Our own claims of all kinds exclude each other. Other libraries keep the kinds apart: Curator's read-write lock does not count the
//! nodes of its mutex, nor its mutex those of a read-write lock or a semaphore. A claim that finds such a node of theirs is refused.
//!
//! Permits have folders of their own, each with its own numbers, so that the transactions that made the nodes say who came first. A
//! permit is there twice: first in its line (`locks`), later with its leases, which say its place in line. A claim makes its own node
//! before it looks at the others', so that of two claims one sees the other at least. It lists `locks` before `leases`: a permit that
//! has left its line by then has its leases.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use fencepost_core::{ClaimRecord, Error, ErrorKind, Result, Token};
use futures_util::future::{join, join_all};
use zookeeper_client as zk;

use crate::child::{Child, Kind};
use crate::error::{ENGINE, failure};
use crate::layout::{LEASES, LOCKS};
use crate::link::Link;

/// The most nodes that are remembered at once.
const MOST: usize = 16_384;

/// Nodes of ours, by their paths, with their places in line.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<String, u64>>);

/// Another kind of lock, and how to claim it.
struct Kinds {
    used: &'static str,
    advice: &'static str,
}

const READ_WRITE: Kinds = Kinds {
    used: "a read-write lock",
    advice: "claim it with --write or --shared, in the library with an RwLock",
};
const PLAIN: Kinds = Kinds {
    used: "a plain lock",
    advice: "claim it without --write and --shared, in the library with a Mutex",
};
const SEMAPHORE: Kinds =
    Kinds { used: "a semaphore", advice: "claim it with --permits, in the library with a Semaphore" };
const NO_PERMITS: Kinds = Kinds {
    used: "a lock without permits",
    advice: "claim it without --permits, in the library with a Mutex or an RwLock",
};

/// Who stands in another folder of the same lock.
pub(crate) enum Beside {
    /// Nobody who came before.
    Nobody,
    /// Somebody, with this path.
    Before(String),
}

/// Looks for permits that came before the claim at `place`.
///
/// # Errors
/// A node is another library's.
pub(crate) async fn permits_before(link: &Link, folder: &str, place: Token) -> Result<Beside> {
    let paths = [LOCKS, LEASES].map(|sub| format!("{folder}/{sub}"));
    // Both are sent by the first poll, in this order.
    let (locks, leases) = link.within(join(link.list(paths[0].clone()), link.list(paths[1].clone()))).await?;
    let (locks, leases) = (contenders(&paths[0], locks)?, contenders(&paths[1], leases)?);
    before(link, locks.into_iter().chain(leases).collect(), place, &SEMAPHORE).await
}

/// Looks for holders and waiters of other modes that came before the permit at `place`.
///
/// # Errors
/// A node is another library's.
pub(crate) async fn others_before(link: &Link, folder: &str, place: Token) -> Result<Beside> {
    let names = link.within(link.list(folder.to_owned())).await?;
    let paths = contenders(folder, names)?;
    before(link, paths, place, &NO_PERMITS).await
}

/// Refuses a claim beside `others`, nodes of the other kind in its folder, if one of them is another library's.
///
/// # Errors
/// One is.
pub(crate) async fn check_kinds(link: &Link, folder: &str, others: &[Child]) -> Result<()> {
    let Some(other) = others.first() else { return Ok(()) };
    let kind = if other.kind == Some(Kind::ReadWrite) { &READ_WRITE } else { &PLAIN };
    let paths = others.iter().map(|child| format!("{folder}/{}", child.name)).collect();
    places(link, paths, kind).await.map(drop)
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

/// The last of the nodes that came before `place`.
async fn before(link: &Link, paths: Vec<String>, place: Token, kind: &Kinds) -> Result<Beside> {
    let places = places(link, paths, kind).await?;
    let last = places.into_iter().filter(|(_, other)| *other < place.get()).max_by_key(|(_, other)| *other);
    Ok(last.map_or(Beside::Nobody, |(path, _)| Beside::Before(path)))
}

/// The places in line of nodes that are ours, those that have gone left out.
async fn places(link: &Link, paths: Vec<String>, kind: &Kinds) -> Result<Vec<(String, u64)>> {
    let (mut places, mut unknown) = (Vec::new(), Vec::new());
    {
        let known = link.known.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            match known.get(&path) {
                Some(place) => places.push((path, *place)),
                None => unknown.push(path),
            }
        }
    }
    let read = places.len();
    let answers = link.within(join_all(unknown.iter().map(|path| link.data(path.clone())))).await?;
    for (path, answer) in unknown.into_iter().zip(answers) {
        let (data, stat) = match answer {
            Err(zk::Error::NoNode) => continue,
            answer => answer.map_err(|error| failure(&error))?,
        };
        let payload = ClaimRecord::read(&data);
        if payload.id.is_none() {
            return Err(foreign(&path, &payload.holder.label, kind));
        }
        places.push((path, payload.place.unwrap_or(stat.czxid.cast_unsigned())));
    }
    let mut known = link.known.0.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() + places.len() > MOST {
        known.clear();
    }
    known.extend(places[read..].iter().cloned());
    Ok(places)
}

fn foreign(path: &str, label: &str, kind: &Kinds) -> Error {
    let Kinds { used, advice } = kind;
    let message = format!(
        "another library uses this name as {used} ({label}, node {path}), and its claims do not exclude other kinds; {advice}"
    );
    Error::new(ErrorKind::Configuration, message).on(ENGINE)
}
