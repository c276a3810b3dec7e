//! Messages that do not come.

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{LONG, SOON, connect, granted, lock, wait, within};

/// The rights of its user were changed, or its connection was cut while they were.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_may_not_subscribe_is_granted_by_its_own_requests() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().user("app", "secret")).unwrap();
    let (one, two) = (connect(&redis.url(), LONG).await, connect(&redis.url(), LONG).await);
    let guard = lock(&one, "lock").await;
    let waiting = wait(&two, "lock", 1).await;
    let mut look = redis.look();
    look.ask::<()>(&["ACL", "SETUSER", "app", "-subscribe"]);
    assert!(look.ask::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]) >= 2);
    within(SOON, guard.release()).await.expect("the server answers");
    let guard = granted(waiting, SOON).await;
    // Claims that begin only now are granted, too.
    let waiting = wait(&one, "lock", 1).await;
    within(SOON, guard.release()).await.expect("the server answers");
    within(SOON, granted(waiting, SOON).await.release()).await.expect("the server answers");
    let error = fencepost_core::Client::builder().connect(&crate::kit::registry(), &redis.url()).await;
    assert!(error.expect_err("a new client is refused").is_denied());
}
