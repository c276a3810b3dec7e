//! Leases that are not renewed.

use std::time::Duration;

use fencepost_core::{Eviction, Loss};
use fencepost_testkit::needs;

use crate::{SOON, connect, start};

/// Nothing renews its session, and its client has no other claim, so no message about the eviction arrives.
#[tokio::test]
async fn an_evicted_holder_with_a_fixed_lease_is_told() {
    needs!(MARIADB);
    let (_server, url) = start().await;
    let (one, two, operator) = (connect(&url).await, connect(&url).await, connect(&url).await);
    // The lock's own row has the exclusive holder, the queue has the shared one.
    let ttl = Duration::from_secs(9);
    let exclusive = one.mutex("lock").expect("a good name");
    let exclusive = exclusive.lock().ttl(ttl).no_renewal().await.expect("it is free");
    let shared = two.rwlock("read").expect("a good name");
    let shared = shared.read().ttl(ttl).no_renewal().await.expect("it is free");
    let how = Eviction::new(false).because("maintenance");
    operator.evict("lock", exclusive.token(), &how).await.expect("it is held");
    operator.evict("read", shared.token(), &how).await.expect("it is held");
    for guard in [exclusive, shared] {
        let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
        assert_eq!(lost, Loss::Evicted);
        let detail = guard.loss_detail().unwrap_or_default();
        assert!(detail.contains("maintenance"), "{detail:?}");
    }
    for client in [one, two, operator] {
        client.close().await;
    }
}

/// `evict --now` deletes the row, and the next claim is granted the lock at once.
#[tokio::test]
async fn a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted() {
    needs!(MARIADB);
    let (_server, url) = start().await;
    let (holder, operator) = (connect(&url).await, connect(&url).await);
    let mutex = holder.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(Duration::from_secs(9)).no_renewal().await.expect("it is free");
    operator.evict("lock", guard.token(), &Eviction::new(true)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Deleted);
    for client in [holder, operator] {
        client.close().await;
    }
}
