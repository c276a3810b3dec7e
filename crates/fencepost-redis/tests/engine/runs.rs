//! The runs that the server keeps.

use std::time::Duration;

use fencepost_core::{Client, ClientBuilder, Firing, Registry};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Proxied, Redis};

use crate::kit::{LONG, SOON, eventually, granted, lock, patient, registry, wait};
use crate::strangers::{allow, enough};

fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

/// A client whose runs the server keeps for so long.
pub(crate) async fn keeper(url: &str, keep: Duration) -> Client {
    let builder = Client::builder()
        .ttl(LONG)
        .history(keep)
        .connect_wait(SOON)
        .attempt_timeout(SOON)
        .release_timeout(SOON);
    builder.connect(&registry(), &patient(url)).await.unwrap()
}

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
        let builder = history.into_iter().fold(Client::builder().connect_wait(SOON), ClientBuilder::history);
        builder.connect(&registry, &server.url()).await.unwrap()
    };
    let key = "fencepost:\u{1}run:lock";
    cycle(&connect(None).await, 0).await;
    assert_eq!(server.look().ask::<i64>(&["EXISTS", key]), 0, "nobody asked");
    let look = || server.look().ask::<u64>(&["PTTL", key]) / 1_000;
    cycle(&connect(Some(days(31))).await, 0).await;
    let left = look();
    assert!(left > days(31).as_secs() - 60 && left <= days(31).as_secs(), "{left} s");
    // A claim that asks for less does not shorten what another one has asked for.
    let locks = connect(Some(days(1))).await;
    cycle(&locks, 3).await;
    assert!(look() > days(30).as_secs());
    // Nor does one that asks for none, with a lease that moves the key's end.
    let guard = lock(&connect(None).await, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    guard.release().await.unwrap();
    drop(granted(waiting, SOON).await);
    eventually("it is dropped", async || locks.inspect("lock").await.unwrap().claims.is_empty()).await;
    assert!(look() > days(30).as_secs());
    cycle(&locks, 3).await;
    let info = locks.inspect("lock").await.unwrap();
    let runs = info.runs.unwrap();
    assert_eq!(runs.last.unwrap().exit_code, Some(3));
    assert_eq!(runs.good.unwrap().exit_code, Some(0));
    let listing = locks.list("", &fencepost_core::Page::default()).await.unwrap();
    assert!(listing.resources.is_empty(), "{listing:?}");
}

/// The host's release has arrived, and no later word of the host does. The next holder sees the good end.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_dies_with_its_release_has_not_lost_its_good_end() {
    needs!(REDIS);
    let mut proxied = Proxied::start(&Config::new()).unwrap();
    let far = keeper(&proxied.url(), days(1)).await;
    let near = keeper(&proxied.direct_url(), days(1)).await;
    let guard = lock(&far, "job").await;
    let token = guard.token();
    let waiting = wait(&near, "job", 1).await;
    guard.report(0);
    proxied.delay(Duration::from_millis(300)).unwrap();
    let release = tokio::spawn(guard.release());
    let next = granted(waiting, SOON).await;
    // The reply to the release is under way to the host.
    proxied.cut().unwrap();
    let runs = near.inspect("job").await.unwrap().runs.unwrap();
    assert_eq!(runs.good.map(|run| run.token), Some(token), "the end came with the release");
    assert_eq!(runs.last.map(|run| (run.token, run.exit_code)), Some((token, Some(0))));
    assert_eq!(runs.running.map(|run| run.token), Some(next.token()));
    release.abort();
    next.release().await.unwrap();
}

/// A server deletes a key whose expiry is no number that it can have, and the job would run again.
#[tokio::test]
async fn a_job_may_run_once_for_ever() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let registry = fencepost_redis::register(Registry::new());
    let locks = Client::builder().connect_wait(SOON).connect(&registry, &server.url()).await.unwrap();
    let once = locks.once("job", Duration::MAX).unwrap();
    let Some(Firing::First(guard)) = once.try_begin().await.unwrap() else { panic!("it has not run") };
    guard.report(0);
    guard.release().await.unwrap();
    let again = once.try_begin().await.unwrap();
    assert!(matches!(&again, Some(Firing::Already(run)) if run.is_good()), "{again:?}");
}
