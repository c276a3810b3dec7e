//! The own nodes of grants that are held for a while: an operator who deletes one ends its grant.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::{Loss, Moment};
use zookeeper_client as zk;

use crate::evict::check;
use crate::holding::{Holding, Holdings};
use crate::link::{Asked, Link};

/// A grant that is held for so long has its nodes watched: shorter ones pay nothing.
const AGE: Duration = Duration::from_secs(1);
/// Grants of the same tenth of a second are looked at together.
const GRID: u64 = 100_000_000;
/// How soon a watch that could not be set is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// The most bytes that the paths of watched nodes of one session may have. After a broken connection the driver sets all watches again; it
/// loses the session if they don't fit into one request, which has 128 KiB, and waiters have watches, too.
const MOST_BYTES: usize = 64 * 1024;

/// When the nodes of a grant of `now` are watched.
pub(crate) fn due(now: Moment) -> Moment {
    Moment::from_nanos((now + AGE).as_nanos().next_multiple_of(GRID))
}

/// Watches the nodes of a grant until they go. Their deletion ends the grant.
pub(crate) fn watch(holdings: &Arc<Holdings>, held: &Holding) {
    let Some(budget) = Budget::take(&held.link, held.paths.iter().map(String::len).sum()) else {
        tracing::debug!("too many nodes are watched: a deletion of this one is noticed late");
        return;
    };
    let budget = Arc::new(budget);
    for path in &held.paths {
        let (holdings, held, path) = (Arc::downgrade(holdings), held.clone(), path.clone());
        let (runtime, budget) = (held.claim.runtime.clone(), Arc::clone(&budget));
        runtime.spawn(async move {
            watch_node(holdings, held, path).await;
            drop(budget);
        });
    }
}

async fn watch_node(holdings: Weak<Holdings>, held: Holding, path: String) {
    let Holding { claim, link, .. } = held;
    while !link.is_over() && claim.validity.ended().is_none() {
        let at = path.clone();
        let asked: Asked<_> = link.ask(move |client| async move { client.check_and_watch_stat(&at).await });
        let gone = match link.within(asked).await {
            Ok(Ok((None, _))) => true,
            Ok(Ok((Some(_), watcher))) => watcher.changed().await.event_type == zk::EventType::NodeDeleted,
            _ => {
                link.sleep(link.clock().now() + AGAIN).await;
                continue;
            }
        };
        if gone {
            // A holder that has released it, or begins to, is told nothing.
            if holdings.upgrade().is_some_and(|holdings| holdings.has(&claim)) {
                claim.validity.end_with(Loss::Deleted, deleted(&path));
            }
            return;
        }
    }
}

/// The words for a node that somebody else has deleted.
pub(crate) fn deleted(path: &str) -> String {
    format!("its node {path} was deleted")
}

/// Bytes of paths, given back with the watch.
struct Budget {
    link: Arc<Link>,
    bytes: usize,
}

impl Budget {
    fn take(link: &Arc<Link>, bytes: usize) -> Option<Budget> {
        let before = link.watched.fetch_add(bytes, Ordering::Relaxed);
        // Its drop gives the bytes back.
        Some(Budget { link: Arc::clone(link), bytes }).filter(|_| before + bytes <= MOST_BYTES)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.link.watched.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Looks at all own nodes whenever the connection is back: what happened meanwhile was told nobody.
pub(crate) async fn look_again(holdings: Weak<Holdings>, link: Arc<Link>) {
    let Ok(mut states) = link.client().map(|client| client.state_watcher()) else { return };
    let mut broken = false;
    let mut over = link.validity.watch();
    loop {
        let state = poll_fn(|cx| {
            over.set(cx.waker());
            if link.validity.ended().is_some() {
                return Poll::Ready(None);
            }
            pin!(states.changed()).poll(cx).map(Some)
        });
        let Some(state) = state.await.filter(|state| !state.is_terminated()) else { return };
        if state == zk::SessionState::Disconnected {
            broken = true;
        } else if std::mem::take(&mut broken) {
            let Some(holdings) = holdings.upgrade() else { return };
            check(&holdings, &link).await;
        }
    }
}
