//! Evicts a holder: marks its node and makes a notice that tells it to read the mark ([`crate::claim::evicted`]).
//!
//! The holder deletes the notice. Notices that no holder deletes are removed by the next eviction.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ClaimRecord, Error, ErrorKind, Eviction, Name, Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::client::Client;
use crate::error::{ENGINE, failure};
use crate::operator::list::contenders;
use crate::session::{Request, Session};

/// How long to wait until the holder has read the notice. A disconnected holder finds it when it is back.
const PATIENCE: Duration = Duration::from_secs(2);
/// The age, by the servers' clock, at which no holder can read a notice any more: no session is longer (see [`crate::config`]).
const STALE: Duration = Duration::from_secs(2 * 60 * 60);
/// The most stale notices that are looked for at once.
const AT_ONCE: usize = 256;

/// Evicts the holder whose grant has that token.
///
/// # Cancel safety
/// Dropped midway, the holder is evicted or not.
pub(crate) async fn evict(client: &Arc<Client>, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let session = client.session().await?;
    let all = contenders(client, &session, name).await?;
    let Some(holder) = all.into_iter().find(|contender| contender.holds && contender.token() == token) else {
        return Err(mismatch(token, name));
    };
    let foreign = holder.record.id.is_none();
    if foreign && !how.now {
        let message = format!(
            "{} is another library's client, and cannot be told that it is evicted; evict it at once to take the lock from it",
            holder.record.holder.label
        );
        return Err(Error::new(ErrorKind::Unsupported, message).of(name.clone()).on(ENGINE));
    }
    let mut noticed = None;
    if !foreign {
        for path in &holder.paths {
            mark(&session, path.clone(), holder.stat.czxid, token, name).await?;
        }
        let path = client.held.notice(holder.stat.ephemeral_owner, token);
        make_notice(client, &session, &path, how.reason.as_deref()).await?;
        noticed = Some(path);
    }
    if how.now {
        let paths = holder.paths.into_iter().chain(holder.queued);
        for answer in session.within(join_all(paths.map(|path| session.delete(path)))).await? {
            match answer {
                Ok(()) | Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
    }
    if let Some(path) = noticed {
        wait_for_deletion(&session, path).await;
    }
    Ok(())
}

fn mismatch(token: Token, name: &Name) -> Error {
    Error::no_grant(name.clone(), token).on(ENGINE)
}

/// Writes the mark into the node that the transaction `made` has made, unless it is marked.
async fn mark(session: &Session, path: String, made: i64, token: Token, name: &Name) -> Result<()> {
    loop {
        let (data, stat) = match session.within(session.data(path.clone())).await? {
            Err(zk::Error::NoNode) => return Err(mismatch(token, name)),
            read => read.map_err(|error| failure(&error))?,
        };
        let record = ClaimRecord::read(&data)?;
        if stat.czxid != made {
            return Err(mismatch(token, name));
        }
        if record.evicted {
            return Ok(());
        }
        let (at, data) = (path.clone(), ClaimRecord { evicted: true, ..record }.to_bytes());
        let set: Request<_> = session
            .request(move |driver| async move { driver.set_data(&at, &data, Some(stat.version)).await });
        match session.within(set).await? {
            Err(zk::Error::BadVersion | zk::Error::NoNode) => {}
            set => return set.map(drop).map_err(|error| failure(&error)),
        }
    }
}

/// Makes the notice at `path`.
async fn make_notice(client: &Client, session: &Session, path: &str, reason: Option<&str>) -> Result<()> {
    loop {
        let (at, data) = (path.to_owned(), reason.unwrap_or_default().as_bytes().to_vec());
        let made: Request<_> = session.request(move |driver| async move {
            // The holder must read it, whatever its user.
            let everybody = zk::Acls::anyone_all();
            driver.create(&at, &data, &zk::CreateMode::Persistent.with_acls(everybody)).await
        });
        match session.within(made).await? {
            Ok((stat, _)) => {
                if let Err(error) = remove_stale(session, &client.held.notices, stat.ctime).await {
                    tracing::debug!(%error, "stale notices are still there");
                }
                return Ok(());
            }
            Err(zk::Error::NodeExists) => return Ok(()),
            Err(zk::Error::NoNode) => client.make_open_folder(session, &client.held.notices).await?,
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Waits until the holder has deleted the notice, at most 2 s ([`PATIENCE`]).
async fn wait_for_deletion(session: &Session, path: String) {
    let watched: Request<_> =
        session.request(move |driver| async move { driver.get_and_watch_data(&path).await });
    let until = session.clock().now() + PATIENCE;
    let wait = async {
        if let Ok((.., watcher)) = watched.await {
            watcher.changed().await;
        }
    };
    session.clock().within(until, wait).await;
}

/// Deletes stale notices. `now`: the time of the newest one. If it fails, the next eviction tries again.
async fn remove_stale(session: &Session, folder: &str, now: i64) -> Result<()> {
    let names = session.answer(session.list(folder.to_owned())).await?;
    let paths: Vec<_> = names.iter().take(AT_ONCE).map(|name| format!("{folder}/{name}")).collect();
    let stats = session.within(join_all(paths.iter().map(|path| session.stat(path.clone())))).await?;
    let stale = |stat: &zk::Stat| now.saturating_sub(stat.ctime) > STALE.as_millis() as i64;
    let old = paths.into_iter().zip(stats).filter(|(_, stat)| matches!(stat, Ok(Some(stat)) if stale(stat)));
    session.within(join_all(old.map(|(path, _)| session.delete(path)))).await?;
    Ok(())
}
