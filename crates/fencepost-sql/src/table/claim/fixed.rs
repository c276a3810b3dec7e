//! Leases that are not renewed.

use std::sync::Weak;
use std::time::Duration;

use fencepost_core::{Loss, third_of_lease};

use crate::table::claim::request::{self, Fate};
use crate::table::claim::waiter::Waiter;
use crate::table::client::TableClient;

/// Looks after each third of a lease that is not renewed whether its claim was evicted or has lost its row, because no renewal tells its holder.
pub(crate) async fn watch_fixed(client: Weak<TableClient>, waiter: Weak<Waiter>, mut ttl: Duration) {
    let Some(clock) = client.upgrade().map(|client| client.runtime.clock().clone()) else { return };
    loop {
        let waiter = third_of_lease(&clock, ttl, &waiter).await;
        let (Some(client), Some(waiter)) = (client.upgrade(), waiter) else { return };
        let claim = &waiter.claim;
        if clock.is_stopped() || waiter.is_leaving() || !claim.is_valid() {
            return;
        }
        match request::fate(&client, claim).await {
            Ok(Fate::Holds) => {}
            Ok(Fate::Evicted(reason)) => return claim.validity.end_with(Loss::Evicted, &*reason),
            // Its release may have removed the row meanwhile.
            Ok(Fate::Missing) if waiter.is_leaving() => return,
            Ok(Fate::Missing) => return claim.validity.end(Loss::Deleted),
            Err(failure) => tracing::debug!(%failure, "nobody knows whether a claim was evicted"),
        }
        ttl = claim.ttl();
    }
}
