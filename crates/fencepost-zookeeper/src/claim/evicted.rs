//! The holder's side of evictions: it follows the notices for its session.
//!
//! ZooKeeper reports a change only to a client that watches the node, and a watch for each held lock would cost a request each. So each
//! client that holds anything watches one folder, `.fencepost/evicted`. An operator marks the holder's node and makes a notice in that
//! folder: a node named after the holder's session and the grant's token. The holder reads its node and deletes the notice. A holder that
//! is stopped or disconnected finds the notice when it is back, however late.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{ClaimRecord, ErrorKind, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::claim::held::{HeldGrant, HeldGrants, delete, read_notice};
use crate::client::Client;
use crate::session::{Request, Session};

/// The pause before a folder that could not be watched is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// The same where this user has no right to watch it.
const RETRY_FORBIDDEN: Duration = Duration::from_secs(30);
/// The most nodes that are read at once.
const AT_ONCE: usize = 256;

/// Follows the notices from now on, until the session ends.
pub(crate) fn follow(client: &Arc<Client>, session: &Arc<Session>) {
    if client.held.followed.swap(session.id, Ordering::Relaxed) != session.id {
        let runtime = client.runtime.clone();
        runtime.spawn(check_after_reconnect(Arc::downgrade(&client.held), Arc::clone(session)));
        let folder = client.held.notices.clone();
        runtime.spawn(follow_notices(Arc::downgrade(client), Arc::clone(session), folder));
    }
}

async fn follow_notices(weak: Weak<Client>, session: Arc<Session>, folder: String) {
    while !session.is_over() {
        let path = folder.clone();
        let request: Request<_> =
            session.request(move |driver| async move { driver.list_and_watch_children(&path).await });
        let error = match request.await {
            Ok((names, watcher)) => {
                let Some(client) = weak.upgrade() else { return };
                let grants = Arc::clone(&client.held);
                drop(client);
                if !read_notices(&grants, &session, &folder, &names).await {
                    session.sleep(RETRY).await;
                    continue;
                }
                drop(grants);
                watcher.changed().await;
                continue;
            }
            Err(zk::Error::NoNode) => {
                let Some(client) = weak.upgrade() else { return };
                match client.make_open_folder(&session, &folder).await {
                    Ok(()) => continue,
                    Err(error) => error,
                }
            }
            Err(error) => crate::error::failure(&error),
        };
        let forbidden = error.kind() == ErrorKind::Denied;
        if forbidden {
            tracing::warn!(%error, folder, "evictions are not noticed: allow this user to read and create there");
        } else {
            tracing::debug!(%error, "evictions are not noticed");
        }
        session.sleep(if forbidden { RETRY_FORBIDDEN } else { RETRY }).await;
    }
}

/// Acts on the notices for this session. Every client may make a notice; only one that may write into the node has marked or deleted it.
/// `false`: the nodes could not be read, and the notices are still there.
async fn read_notices(grants: &HeldGrants, session: &Arc<Session>, folder: &str, names: &[String]) -> bool {
    let own = format!("{:x}-", session.id);
    let token = |name: &String| name.strip_prefix(&own)?.parse::<Token>().ok();
    let notices: Vec<_> =
        names.iter().filter_map(|name| Some((format!("{folder}/{name}"), token(name)?))).collect();
    if notices.is_empty() {
        return true;
    }
    let mut noticed = Vec::new();
    for some in notices.chunks(AT_ONCE) {
        let texts = some.iter().map(|(path, _)| read_notice(session, path.clone()));
        let Ok(texts) = session.within(join_all(texts)).await else { return false };
        for ((path, token), text) in some.iter().zip(texts) {
            match text {
                Ok(text) => noticed.push((path.clone(), *token, text)),
                // The client that made it may hide the reason.
                Err(zk::Error::NoAuth) => noticed.push((path.clone(), *token, String::new())),
                Err(zk::Error::NoNode) => {}
                Err(_) => return false,
            }
        }
    }
    // A grant may not be known yet. The later of the two, this notice or the grant, finds the other.
    grants.note(noticed.iter().map(|(_, token, reason)| (*token, reason.clone())));
    let is_noticed = |held: &HeldGrant| noticed.iter().any(|(_, token, _)| *token == held.token);
    let held: Vec<_> = grants.of(session).into_iter().filter(is_noticed).collect();
    if !check(grants, session, &held).await {
        return false;
    }
    held.iter().for_each(|held| grants.forget(held.token));
    delete(session, noticed.into_iter().map(|(path, ..)| path).collect()).await;
    true
}

/// Checks a new grant if there is a notice for it already.
pub(crate) fn check_new(client: &Client, session: &Arc<Session>, token: Token) {
    if client.held.reason(token).is_none() {
        return;
    }
    let (grants, session) = (Arc::clone(&client.held), Arc::clone(session));
    client.runtime.spawn(async move {
        let own: Vec<_> = grants.of(&session).into_iter().filter(|held| held.token == token).collect();
        while !session.is_over() && !check(&grants, &session, &own).await {
            session.sleep(RETRY).await;
        }
        grants.forget(token);
    });
}

/// Ends the grants whose nodes are marked or deleted. `false`: not all nodes could be read.
async fn check(grants: &HeldGrants, session: &Session, held: &[HeldGrant]) -> bool {
    for some in held.chunks(AT_ONCE) {
        let requests = some.iter().map(|held| session.data(held.path().to_owned()));
        let Ok(answers) = session.within(join_all(requests)).await else { return false };
        let (mut all, mut lost) = (true, Vec::new());
        for (held, answer) in some.iter().zip(answers) {
            match answer {
                Ok((data, _)) if ClaimRecord::read(&data).is_ok_and(|record| record.evicted) => {
                    lost.push(grants.end(held, None, grants.read_notice(held)));
                }
                Err(zk::Error::NoNode) => {
                    lost.push(grants.end(held, Some(held.path()), grants.read_notice(held)));
                }
                Ok(_) | Err(zk::Error::NoAuth) => {}
                Err(_) => all = false,
            }
        }
        join_all(lost).await;
        if !all {
            return false;
        }
    }
    true
}

/// Checks all grants of the session after each reconnect: nothing reported the changes meanwhile.
async fn check_after_reconnect(grants: Weak<HeldGrants>, session: Arc<Session>) {
    let Ok(mut states) = session.driver().map(|driver| driver.state_watcher()) else { return };
    let mut disconnected = false;
    let mut over = session.validity.watch(session.clock());
    loop {
        let state = poll_fn(|cx| {
            over.set(cx.waker());
            if session.validity.ended().is_some() {
                return Poll::Ready(None);
            }
            pin!(states.changed()).poll(cx).map(Some)
        });
        let Some(state) = state.await.filter(|state| !state.is_terminated()) else { return };
        if state == zk::SessionState::Disconnected {
            disconnected = true;
        } else if std::mem::take(&mut disconnected) {
            let Some(grants) = grants.upgrade() else { return };
            // If this fails, the connection breaks once more.
            check(&grants, &session, &grants.of(&session)).await;
        }
    }
}
