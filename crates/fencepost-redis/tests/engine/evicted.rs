//! Tests the report of an eviction to its holder.

use crate::kit::{LONG, SOON, connect, lock, within};
use fencepost_core::{Eviction, Loss};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Proxied, Redis};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_message_is_lost_learns_who_evicted_it_and_why() {
    needs!(REDIS);
    let mut proxied = Proxied::start(&Config::new()).unwrap();
    let ttl = Duration::from_secs(9);
    let locks = connect(&format!("{}?timeout=500ms", proxied.url()), ttl).await;
    let operator = connect(&proxied.direct_url(), ttl).await;
    let guard = lock(&locks, "lock").await;
    proxied.cut().unwrap();
    let how = Eviction::new(false).because("the host is replaced");
    operator.evict("lock", guard.token(), &how).await.unwrap();
    proxied.mend().unwrap();
    assert_eq!(within(ttl + SOON, guard.lost()).await, Loss::Evicted);
    let error = guard.ensure_held().unwrap_err().to_string();
    let pid = format!("pid {}", std::process::id());
    assert!(error.contains("the host is replaced") && error.contains(&pid), "{error}");
}

/// The message about an eviction finds each guard of the lease, also after an extension by the lease's text.
#[tokio::test(flavor = "multi_thread")]
async fn each_guard_of_a_lease_that_was_extended_is_told_of_an_eviction_at_once() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    // Its next renewal comes later than `SOON`.
    let ttl = 10 * LONG;
    let (locks, operator) = (connect(&redis.url(), ttl).await, connect(&redis.url(), ttl).await);
    let lease = lock(&locks, "lock").await.detach().await.unwrap();
    let guards = [locks.attach(&lease).await.unwrap(), locks.attach(&lease).await.unwrap()];
    locks.extend(&lease, ttl).await.unwrap();
    let how = Eviction::new(false).because("the host is replaced");
    operator.evict("lock", guards[0].token(), &how).await.unwrap();
    for guard in guards {
        assert_eq!(within(SOON, guard.lost()).await, Loss::Evicted);
        let error = guard.ensure_held().unwrap_err().to_string();
        assert!(error.contains("the host is replaced"), "{error}");
    }
}
