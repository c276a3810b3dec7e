//! Evicting: the mark is in the holder's node, and a bell tells the holder to look.
//!
//! ZooKeeper can tell of a change only to somebody who watches that node, and a watch for each lock that is held would cost a
//! request each. So there is one folder, `.fencepost/evicted`, which each process that holds anything watches: an operator makes
//! a node there with the number of the holder's session and the grant's token, and takes it away when the holder has seen it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Eviction, Loss, Name, Payload, Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::error::{ENGINE, failure};
use crate::holding::{Holding, Holdings, delete};
use crate::link::{Asked, Link};
use crate::listing::look;
use crate::shared::Shared;

/// How long a holder's answer is waited for. It may be cut off, and will see its mark when it is back.
const PATIENCE: Duration = Duration::from_secs(2);
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
        let aid = shared.aid.clone();
        aid.spawn(async move {
            let mut breaks = link.breaks();
            while !link.is_over() {
                let path = folder.clone();
                let asked: Asked<_> =
                    link.ask(move |client| async move { client.list_and_watch_children(&path).await });
                match asked.await {
                    Ok((names, watcher)) => {
                        let Some(shared) = weak.upgrade() else { return };
                        let holdings = Arc::clone(&shared.holdings);
                        drop(shared);
                        heed(&holdings, &link, &folder, &names).await;
                        if link.breaks() != breaks {
                            breaks = link.breaks();
                            check(&holdings, &link).await;
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
async fn heed(holdings: &Holdings, link: &Arc<Link>, folder: &str, names: &[String]) {
    let own = format!("{:x}-", link.id);
    let mut heard = Vec::new();
    for name in names {
        if let Some(token) = name.strip_prefix(&own).and_then(|token| token.parse::<Token>().ok()) {
            heard.push((format!("{folder}/{name}"), token));
        }
    }
    if !heard.is_empty() {
        let rung = |held: &Holding| heard.iter().any(|(_, token)| *token == held.token);
        let held: Vec<_> = holdings.of(link).into_iter().filter(rung).collect();
        look_at(holdings, link, &held).await;
        delete(link, heard.into_iter().map(|(path, _)| path).collect()).await;
    }
}

/// Looks at all own nodes: a bell may have come and gone while the connection was broken.
async fn check(holdings: &Holdings, link: &Link) {
    look_at(holdings, link, &holdings.of(link)).await;
}

/// Those of them that are marked are over, and those that have gone.
async fn look_at(holdings: &Holdings, link: &Link, held: &[Holding]) {
    for some in held.chunks(AT_ONCE) {
        let first = |held: &Holding| held.paths.first().cloned().unwrap_or_default();
        let Ok(answers) = link.within(join_all(some.iter().map(|held| link.data(first(held))))).await else {
            return;
        };
        for (held, answer) in some.iter().zip(answers) {
            match answer {
                Ok((data, _)) if Payload::read(&data).evicted => holdings.evict(held.token, Loss::Evicted),
                Err(zk::Error::NoNode) => holdings.evict(held.token, Loss::Deleted),
                _ => {}
            }
        }
    }
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
            mark(&link, path.clone(), token, name).await?;
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

/// Writes the mark into a node, unless it has it.
async fn mark(link: &Link, path: String, token: Token, name: &Name) -> Result<()> {
    loop {
        let (data, stat) = match link.within(link.data(path.clone())).await? {
            Err(zk::Error::NoNode) => return Err(mismatch(token, name)),
            read => read.map_err(|error| failure(&error))?,
        };
        let payload = Payload::read(&data);
        if stat.czxid as u64 != token.get() {
            return Err(mismatch(token, name));
        }
        if payload.evicted {
            return Ok(());
        }
        let (at, data) = (path.clone(), Payload { evicted: true, ..payload }.to_bytes());
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
            client.create(&at, &data, &zk::CreateMode::Ephemeral.with_acls(everybody)).await
        });
        match link.within(made).await? {
            Ok(_) | Err(zk::Error::NodeExists) => return Ok(path),
            Err(zk::Error::NoNode) => shared.make_open_folder(link, folder).await?,
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Waits a while until the holder has heard, and takes the bell away.
async fn heard(link: &Arc<Link>, path: String) {
    let at = path.clone();
    let watched: Asked<_> = link.ask(move |client| async move { client.get_and_watch_data(&at).await });
    let until = link.clock().now() + PATIENCE;
    let wait = async {
        if let Ok((.., watcher)) = watched.await {
            watcher.changed().await;
        }
    };
    link.clock().within(until, wait).await;
    delete(link, vec![path]).await;
}
