//! The runs that the server keeps.

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Firing, Registry};
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

/// Its connection may fail between the release and the report, and the next holder may be done before it is asked again.
#[test]
fn a_report_that_comes_late_does_not_hide_a_later_run() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let script = include_str!("../../src/script/lua/history.lua");
    let note = |words: &[&str]| {
        let keep = "60000";
        let [step, token, rest @ ..] = words else { panic!("{words:?}") };
        let head = format!(r#"{{"token":{token}"#);
        let words = ["EVAL", script, "1", "runs", step, token, &head, keep];
        server.look().ask::<Vec<i64>>(&[&words[..], rest].concat());
    };
    let last = || server.look().ask::<u64>(&["HGET", "runs", "last_token"]);
    for (others, seen) in [("0", 10), ("1", 9)] {
        server.look().ask::<u64>(&["DEL", "runs"]);
        note(&["begin", "9", others]);
        note(&["begin", "10", others]);
        note(&["end", "10", r#","exit_code":3"#, "0", "5", others]);
        note(&["end", "9", r#","exit_code":0"#, "1", "4", others]);
        assert_eq!(last(), seen, "others: {others}");
    }
}

/// A server deletes a key whose expiry is no number that it can have, and the job would run again.
#[tokio::test]
async fn a_job_may_run_once_for_ever() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let registry = fencepost_redis::register(Registry::new());
    let locks = Client::builder().connect(&registry, &server.url()).await.unwrap();
    let once = locks.once("job", Duration::MAX).unwrap();
    let Firing::First(guard) = once.begin().await.unwrap() else { panic!("it has not run") };
    guard.report(0);
    guard.release().await.unwrap();
    let again = once.begin().await.unwrap();
    assert!(matches!(&again, Firing::Already(run) if run.is_good()), "{again:?}");
}
