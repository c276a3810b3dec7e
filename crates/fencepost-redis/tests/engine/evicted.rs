//! Tests the report of an eviction to its holder.

use crate::kit::{SOON, connect, lock, within};
use fencepost_core::{Eviction, Loss};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Proxied};
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
