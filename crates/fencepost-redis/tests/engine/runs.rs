//! The runs that the server keeps.

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Registry};
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

use crate::strangers::{allow, enough};

async fn cycle(locks: &Client, exit_code: i32) {
    let guard = locks.mutex("lock").unwrap().lock().await.unwrap();
    guard.report(exit_code);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn runs_outlive_the_lock_for_as_long_as_somebody_asked() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().user("app", "secret")).unwrap();
    allow(&server, &enough());
    let registry = fencepost_redis::register(Registry::new());
    let connect = async |history: Option<Duration>| {
        let builder = history.into_iter().fold(Client::builder(), ClientBuilder::history);
        builder.connect(&registry, &server.url()).await.unwrap()
    };
    let kept = "fencepost:\u{1}runs:lock";
    cycle(&connect(None).await, 0).await;
    assert_eq!(server.look().ask::<i64>(&["EXISTS", kept]), 0, "nobody asked");
    let days = |n: u64| Duration::from_secs(n * 86_400);
    let look = || server.look().ask::<u64>(&["PTTL", kept]) / 1_000;
    cycle(&connect(Some(days(31))).await, 0).await;
    let left = look();
    assert!(left > days(31).as_secs() - 60 && left <= days(31).as_secs(), "{left} s");
    // A claim that asks for less does not shorten what another one has asked for.
    let locks = connect(Some(days(1))).await;
    cycle(&locks, 3).await;
    assert!(look() > days(30).as_secs());
    let info = locks.inspect("lock").await.unwrap();
    let runs = info.runs.unwrap();
    assert_eq!(runs.last.unwrap().exit_code, Some(3));
    assert_eq!(runs.good.unwrap().exit_code, Some(0));
    let listing = locks.list("", &fencepost_core::Page::default()).await.unwrap();
    assert!(listing.resources.is_empty(), "{listing:?}");
}
