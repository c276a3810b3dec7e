//! Evicting: the mark is in the holder's node, and a bell tells the holder to look.
//!
//! ZooKeeper can tell of a change only to somebody who watches that node, and a watch for each lock that is held would cost a
//! request each. So there is one folder, `.fencepost/evicted`, which each process that holds anything watches: an operator makes
//! a node there with the number of the holder's session and the grant's token, which the holder takes away when it has looked. One
//! that is stopped or cut off finds it when it is back, however long the operator has gone; what nobody takes away is cleared by
//! whoever rings next.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{ClaimRecord, Error, ErrorKind, Eviction, Loss, Name, Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::error::{ENGINE, failure};
use crate::held::{deleted, look_again};
use crate::holding::{Holding, Holdings, delete};
use crate::link::{Asked, Link};
use crate::listing::look;
use crate::shared::Shared;

/// How long a holder's answer is waited for. It may be cut off, and will see the bell when it is back.
const PATIENCE: Duration = Duration::from_secs(2);
/// No session is longer (see [`crate::config`]), so nobody answers a bell that is older, by the servers' clock.
const STALE: Duration = Duration::from_secs(2 * 60 * 60);
/// So many bells of grants that are not known here are remembered.
const MOST: usize = 1_024;
/// How soon the folder is looked for again when it could not be watched.
const AGAIN: Duration = Duration::from_millis(500);
/// The same where this user may not.
const FORBIDDEN: Duration = Duration::from_secs(30);
/// So many of the own nodes are looked at, at once.
const AT_ONCE: usize = 256;

fn folder(shared: &Shared) -> String {
    format!("{}/.fencepost/evicted", shared.config.root)
}

fn bell(session: i64, token: Token) -> String {
    format!("{session:x}-{token}")
}

/// Hears the bell from now on, until the session ends.
pub(crate) fn listen(shared: &Arc<Shared>, link: &Arc<Link>) {
    if !link.listening.swap(true, Ordering::Relaxed) {
        let (weak, link, folder) = (Arc::downgrade(shared), Arc::clone(link), folder(shared));
        let runtime = shared.runtime.clone();
        runtime.spawn(look_again(Arc::downgrade(&shared.holdings), Arc::clone(&link)));
        runtime.spawn(async move {
            while !link.is_over() {
                let path = folder.clone();
                let asked: Asked<_> =
                    link.ask(move |client| async move { client.list_and_watch_children(&path).await });
                match asked.await {
                    Ok((names, watcher)) => {
                        let Some(shared) = weak.upgrade() else { return };
                        let holdings = Arc::clone(&shared.holdings);
                        drop(shared);
                        if !heed(&holdings, &link, &folder, &names).await {
                            link.sleep(link.clock().now() + AGAIN).await;
                            continue;
                        }
                        drop(holdings);
                        watcher.changed().await;
                    }
                    Err(zk::Error::NoNode) => {
                        let Some(shared) = weak.upgrade() else { return };
                        if let Err(error) = shared.make_open_folder(&link, &folder).await {
                            drop(shared);
                            let forbidden = error.kind() == ErrorKind::Denied;
                            tracing::debug!(%error, "evictions are not heard");
                            link.sleep(link.clock().now() + if forbidden { FORBIDDEN } else { AGAIN }).await;
                        }
                    }
                    Err(error @ zk::Error::NoAuth) => {
                        tracing::warn!(%error, folder, "evictions are not heard: give this user the right to read and create there");
                        link.sleep(link.clock().now() + FORBIDDEN).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "evictions are not heard");
                        link.sleep(link.clock().now() + AGAIN).await;
                    }
                }
            }
        });
    }
}

/// Those of the bells that are for this session. Anybody may ring; only who may write into the node has marked it, or deleted it.
/// `false`: it could not look, and the bells are still there.
async fn heed(holdings: &Holdings, link: &Arc<Link>, folder: &str, names: &[String]) -> bool {
    let own = format!("{:x}-", link.id);
    let mut heard = Vec::new();
    for name in names {
        if let Some(token) = name.strip_prefix(&own).and_then(|token| token.parse::<Token>().ok()) {
            heard.push((format!("{folder}/{name}"), token));
        }
    }
    if !heard.is_empty() {
        // A grant may not be known yet. Whichever comes second, this or the grant, finds the other.
        {
            let mut tokens = link.rung();
            tokens.extend(heard.iter().map(|(_, token)| *token));
            while tokens.len() > MOST {
                tokens.pop_first();
            }
        }
        let rung = |held: &Holding| heard.iter().any(|(_, token)| *token == held.token);
        let held: Vec<_> = holdings.of(link).into_iter().filter(rung).collect();
        let mut said = HashMap::new();
        for (path, token) in heard.iter().filter(|(_, token)| held.iter().any(|held| held.token == *token)) {
            if let Ok(Ok((data, _))) = link.within(link.data(path.clone())).await {
                said.insert(*token, String::from_utf8_lossy(&data).into_owned());
            }
        }
        if !look_at(holdings, link, &held, &said).await {
            return false;
        }
        held.iter().for_each(|held| _ = link.rung().remove(&held.token));
        delete(link, heard.into_iter().map(|(path, _)| path).collect()).await;
    }
    true
}

/// A grant has come: if the bell was rung for it already, its node is looked at.
pub(crate) fn recall(shared: &Shared, link: &Arc<Link>, token: Token) {
    if !link.rung().remove(&token) {
        return;
    }
    let (holdings, link) = (Arc::clone(&shared.holdings), Arc::clone(link));
    shared.runtime.spawn(async move {
        let own: Vec<_> = holdings.of(&link).into_iter().filter(|held| held.token == token).collect();
        while !link.is_over() && !look_at(&holdings, &link, &own, &HashMap::new()).await {
            link.sleep(link.clock().now() + AGAIN).await;
        }
    });
}

/// Looks at all own nodes: a bell may have come and gone while the connection was broken.
pub(crate) async fn check(holdings: &Holdings, link: &Link) {
    // If it cannot look now, the connection breaks once more.
    look_at(holdings, link, &holdings.of(link), &HashMap::new()).await;
}

/// Those of them that are marked are over, and those that have gone. `said`: what the bells say of some. `false`: it could not look at
/// all of them.
async fn look_at(holdings: &Holdings, link: &Link, held: &[Holding], said: &HashMap<Token, String>) -> bool {
    for some in held.chunks(AT_ONCE) {
        let first = |held: &Holding| held.paths.first().cloned().unwrap_or_default();
        let Ok(answers) = link.within(join_all(some.iter().map(|held| link.data(first(held))))).await else {
            return false;
        };
        for (held, answer) in some.iter().zip(answers) {
            match answer {
                Ok((data, _)) if ClaimRecord::read(&data).evicted => {
                    holdings.evict(held.token, Loss::Evicted, said.get(&held.token).cloned());
                }
                Err(zk::Error::NoNode) => match said.get(&held.token) {
                    Some(by) => holdings.evict(held.token, Loss::Evicted, Some(by.clone())),
                    None => holdings.evict(held.token, Loss::Deleted, Some(deleted(&first(held)))),
                },
                Ok(_) | Err(zk::Error::NoAuth) => {}
                Err(_) => return false,
            }
        }
    }
    true
}

/// Evicts the holder whose grant has that token.
///
/// # Cancel safety
/// Dropped midway, the holder is evicted or not.
pub(crate) async fn evict(shared: &Arc<Shared>, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let link = shared.link().await?;
    let all = look(shared, &link, name).await?;
    let Some(seen) = all.into_iter().find(|seen| seen.holds && seen.token() == token) else {
        return Err(mismatch(token, name));
    };
    let foreign = seen.payload.id.is_none();
    if foreign && !how.now {
        let message = format!(
            "{} is no fencepost, and nothing can tell it that it is evicted; only an eviction at once can take the lock from it",
            seen.payload.holder.label
        );
        return Err(Error::new(ErrorKind::Unsupported, message).of(name.clone()).on(ENGINE));
    }
    let folder = folder(shared);
    let rung = if foreign {
        None
    } else {
        for path in &seen.paths {
            mark(&link, path.clone(), seen.stat.czxid, token, name).await?;
        }
        Some(ring(shared, &link, &folder, seen.stat.ephemeral_owner, token, how.reason.as_deref()).await?)
    };
    if how.now {
        let deleted = link
            .within(join_all(seen.paths.into_iter().chain(seen.place).map(|path| link.delete(path))))
            .await?;
        for answer in deleted {
            match answer {
                Ok(()) | Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    if let Some(bell) = rung {
        heard(&link, bell).await;
    }
    Ok(())
}

fn mismatch(token: Token, name: &Name) -> Error {
    let message = format!("no grant has token {token} any more; look again who holds it");
    Error::new(ErrorKind::Mismatch, message).of(name.clone()).on(ENGINE)
}

/// Writes the mark into a node that the transaction `made` has made, unless it has it.
async fn mark(link: &Link, path: String, made: i64, token: Token, name: &Name) -> Result<()> {
    loop {
        let (data, stat) = match link.within(link.data(path.clone())).await? {
            Err(zk::Error::NoNode) => return Err(mismatch(token, name)),
            read => read.map_err(|error| failure(&error))?,
        };
        let payload = ClaimRecord::read(&data);
        if stat.czxid != made {
            return Err(mismatch(token, name));
        }
        if payload.evicted {
            return Ok(());
        }
        let (at, data) = (path.clone(), ClaimRecord { evicted: true, ..payload }.to_bytes());
        let set: Asked<_> =
            link.ask(move |client| async move { client.set_data(&at, &data, Some(stat.version)).await });
        match link.within(set).await? {
            Err(zk::Error::BadVersion | zk::Error::NoNode) => {}
            set => return set.map(drop).map_err(|error| failure(&error)),
        }
    }
}

/// Tells the holder's session to look. Answers with the bell's path.
async fn ring(
    shared: &Shared,
    link: &Link,
    folder: &str,
    session: i64,
    token: Token,
    reason: Option<&str>,
) -> Result<String> {
    let path = format!("{folder}/{}", bell(session, token));
    loop {
        let (at, data) = (path.clone(), reason.unwrap_or_default().as_bytes().to_vec());
        let made: Asked<_> = link.ask(move |client| async move {
            // The holder reads it, whatever user that is.
            let everybody = zk::Acls::anyone_all();
            client.create(&at, &data, &zk::CreateMode::Persistent.with_acls(everybody)).await
        });
        match link.within(made).await? {
            Ok((stat, _)) => {
                if let Err(error) = clear(link, folder, stat.ctime).await {
                    tracing::debug!(%error, "old bells are still there");
                }
                return Ok(path);
            }
            Err(zk::Error::NodeExists) => return Ok(path),
            Err(zk::Error::NoNode) => shared.make_open_folder(link, folder).await?,
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Waits a while until the holder has heard, which takes the bell away.
async fn heard(link: &Arc<Link>, path: String) {
    let watched: Asked<_> = link.ask(move |client| async move { client.get_and_watch_data(&path).await });
    let until = link.clock().now() + PATIENCE;
    let wait = async {
        if let Ok((.., watcher)) = watched.await {
            watcher.changed().await;
        }
    };
    link.clock().within(until, wait).await;
}

/// Clears bells away that nobody will answer any more: `now` is the newest one's time, by the servers' clock. A failure is the next
/// one's to mend.
async fn clear(link: &Link, folder: &str, now: i64) -> Result<()> {
    let names = link.answer(link.list(folder.to_owned())).await?;
    let paths: Vec<_> = names.iter().take(AT_ONCE).map(|name| format!("{folder}/{name}")).collect();
    let stats = link.within(join_all(paths.iter().map(|path| link.stat(path.clone())))).await?;
    let stale = |stat: &zk::Stat| now.saturating_sub(stat.ctime) > STALE.as_millis() as i64;
    let old = paths.into_iter().zip(stats).filter(|(_, stat)| matches!(stat, Ok(Some(stat)) if stale(stat)));
    link.within(join_all(old.map(|(path, _)| link.delete(path)))).await?;
    Ok(())
}
