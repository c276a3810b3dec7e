//! The tests of leases in a lease table that are not renewed. Each SQL engine passes them.

use std::time::Duration;

use fencepost_core::{Client, Eviction, Loss};

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The length of a lease. Its client looks each 3 s.
const TTL: Duration = Duration::from_secs(9);

/// Evicts a holder in the row of a lock, and one in the queue. Nothing renews their sessions, and their clients have no other claims, so no
/// message about the eviction arrives.
///
/// # Panics
/// Panics if they are not told.
pub async fn evicted_holders_with_fixed_leases_are_told(connect: impl AsyncFn() -> Client) {
    let (one, two, operator) = (connect().await, connect().await, connect().await);
    let exclusive = one.mutex("lock").expect("a good name");
    let exclusive = exclusive.lock().ttl(TTL).no_renewal().await.expect("it is free");
    let shared = two.rwlock("read").expect("a good name");
    let shared = shared.read().ttl(TTL).no_renewal().await.expect("it is free");
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

/// Evicts a holder at once, which deletes its row, so that the next claim would be granted the lock.
///
/// # Panics
/// Panics if it is not told.
pub async fn a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted(connect: impl AsyncFn() -> Client) {
    let (holder, operator) = (connect().await, connect().await);
    let mutex = holder.mutex("lock").expect("a good name");
    let guard = mutex.lock().ttl(TTL).no_renewal().await.expect("it is free");
    operator.evict("lock", guard.token(), &Eviction::new(true)).await.expect("it is held");
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::Deleted);
    for client in [holder, operator] {
        client.close().await;
    }
}
