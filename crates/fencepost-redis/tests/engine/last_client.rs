//! The drop of the last client, in a runtime that it blocks.

use fencepost_testkit::needs;
use std::thread;
use std::time::Duration;

use crate::kit::{LONG, connect, lock, registry};
use fencepost_core::Client;
use fencepost_testkit::redis::{Config, Redis};

#[test]
fn its_requests_leave_a_blocked_runtime_at_once() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    // A connection whose runtime stands still is given up after a quarter of this limit: here after 15 s.
    let plain = redis.url();
    let url = format!("{plain}?timeout=60s");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Client::builder().ttl(LONG).connect_wait(LONG).drop_timeout(Duration::from_secs(10));
        let locks = builder.connect(&registry(), &url).await.unwrap();
        drop(lock(&locks, "lock").await);
        drop(locks);
        // This waits for the thread, so the runtime stays blocked.
        thread::scope(|scope| scope.spawn(|| assert_free(&plain)).join()).expect("it is free");
    });
}

#[tokio::main(flavor = "current_thread")]
async fn assert_free(url: &str) {
    let other = connect(url, LONG).await;
    let guard = other.mutex("lock").unwrap().try_lock().await.unwrap();
    guard.expect("it is free").release().await.unwrap();
}
