//! Watches the nodes of grants that are held for a while: an operator who deletes one ends its grant.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::Moment;
use zookeeper_client as zk;

use crate::claim::held::{HeldGrant, HeldGrants, with_notice};
use crate::session::Request;

/// The age at which a grant's nodes are watched: shorter grants cost no request.
const AGE: Duration = Duration::from_secs(1);
/// Grants of the same tenth of a second are watched together, in nanoseconds.
const GRID: u64 = 100_000_000;
/// The pause before a watch that could not be set is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// The most bytes that the paths of watched nodes may have. After a reconnect the driver sets all watches again, and loses the session if
/// they do not fit into one request of 128 KiB. Waiters have watches, too.
const MAX_BYTES: usize = 64 * 1024;

/// Returns the time at which the nodes of a grant of `now` are watched.
pub(crate) fn due(now: Moment) -> Moment {
    Moment::from_nanos((now + AGE).as_nanos().next_multiple_of(GRID))
}

/// Watches the nodes of a grant until they are deleted, which ends the grant.
pub(crate) fn watch(grants: &Arc<HeldGrants>, held: &HeldGrant) {
    let Some(budget) = Budget::take(grants, held.paths.iter().map(String::len).sum()) else {
        tracing::debug!("too many nodes are watched: a deletion of this one is noticed late");
        return;
    };
    let budget = Arc::new(budget);
    for path in &held.paths {
        let (held, path, budget) = (held.clone(), path.clone(), Arc::clone(&budget));
        let runtime = held.claim.runtime.clone();
        runtime.spawn(async move { watch_node(&budget.grants, held, path).await });
    }
}

async fn watch_node(grants: &Weak<HeldGrants>, held: HeldGrant, path: String) {
    let HeldGrant { claim, session, .. } = &held;
    // Only an eviction writes into the node, and it does so before it deletes the node. So a far holder need not ask why the node is gone.
    let mut marked = false;
    while !session.is_over() && claim.validity.ended().is_none() {
        let Some(mut notice) = grants.upgrade().map(|grants| grants.read_notice(&held)) else { return };
        let at = path.clone();
        let request: Request<_> =
            session.request(move |driver| async move { driver.check_and_watch_stat(&at).await });
        let gone = match session.within(with_notice(session.clock(), request, &mut notice)).await {
            Ok(Ok((None, _))) => true,
            Ok(Ok((Some(stat), watcher))) => {
                // The node was there when the notice was read. Also, a request that is kept keeps the driver, which would keep a session alive
                // that has ended here.
                let Some(strong) = grants.upgrade() else { return };
                notice = strong.read_notice(&held);
                drop(strong);
                let event = watcher.changed().await.event_type;
                marked |= stat.version > 0 || event == zk::EventType::NodeDataChanged;
                event == zk::EventType::NodeDeleted
            }
            _ => {
                session.sleep(RETRY).await;
                continue;
            }
        };
        if gone {
            if let Some(grants) = grants.upgrade() {
                grants.end(&held, (!marked).then_some(path.as_str()), notice).await;
            }
            return;
        }
    }
}

/// A share of [`MAX_BYTES`], returned by its drop.
struct Budget {
    grants: Weak<HeldGrants>,
    bytes: usize,
}

impl Budget {
    fn take(grants: &Arc<HeldGrants>, bytes: usize) -> Option<Budget> {
        let before = grants.watched.fetch_add(bytes, Ordering::Relaxed);
        Some(Budget { grants: Arc::downgrade(grants), bytes }).filter(|_| before + bytes <= MAX_BYTES)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(grants) = self.grants.upgrade() {
            grants.watched.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
