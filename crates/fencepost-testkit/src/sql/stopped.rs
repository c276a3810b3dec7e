//! The test of a process that is stopped while it waits in the server's queue. Each SQL engine whose server has a queue passes it.

use std::time::Duration;

use fencepost_core::{Client, Registry};

use crate::conformance::{Elsewhere, Holder};
use crate::wait::eventually;

/// The time limit for events that should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The lease of the stopped process. It holds the lock for all of it, if the server believes that it waits for its own claim.
const TTL: Duration = Duration::from_secs(600);

/// How many claims of the stopped process wait.
const CLAIMS: u32 = 4;

/// A process that is stopped while its claims wait does not keep the lock for its lease. When it goes on, they wait again.
///
/// # Panics
/// Panics if the test fails.
pub async fn a_stopped_process_holds_up_nobody_for_its_lease(registry: &Registry, url: &str) {
    let connect = || async { Client::builder().connect(registry, url).await.expect("it answers") };
    let (holder, other) = (connect().await, connect().await);
    let guard = holder.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mut stopped = Holder::waiting(url, "lock", TTL, CLAIMS);
    let await_waiters = async |least: usize| {
        eventually(SOON, "they wait", || async {
            holder.inspect("lock").await.is_ok_and(|info| info.waiters().count() >= least)
        })
        .await;
    };
    await_waiters(1).await;
    let behind = other.mutex("lock").expect("a good name");
    let behind = tokio::spawn(async move { behind.lock().await });
    await_waiters(2).await;
    stopped.stop();
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(SOON, behind).await.expect("it is granted").expect("no panic");
    next.expect("granted").release().await.expect("it was held");
    stopped.cont();
    stopped.await_held();
    stopped.end();
    holder.close().await;
    other.close().await;
}
