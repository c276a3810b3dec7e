//! Others at our keys, users who may not do everything, and servers that are something else.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Page};
use fencepost_testkit::redis::{Cluster, Config, Masters, Redis, Sentinel};

use crate::kit::{LONG, SOON, connect, granted, lock, patient, registry, wait, within};

/// Not longer than a request may take with all its attempts, and some.
const WAIT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn what_others_put_at_a_key_is_no_lock_and_stays() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let mut look = redis.look();
    look.ask::<()>(&["SET", "fencepost:text", "x"]);
    look.ask::<()>(&["LPUSH", "fencepost:list", "x"]);
    look.ask::<()>(&["HSET", "fencepost:hash", "s", "x"]);
    look.ask::<()>(&["HSET", "fencepost:nothing", "s", ""]);
    let locks = connect(&redis.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    for name in ["text", "list", "hash", "nothing"] {
        let error = locks.mutex(name).unwrap().lock().wait(WAIT).await.expect_err("it is none of ours");
        assert!(error.is_configuration() && error.to_string().contains("prefix="), "{name}: {error}");
        assert!(locks.inspect(name).await.expect_err("it is not free").is_configuration());
    }
    let listed = locks.list("", &Page::default()).await.expect("the others are listed").resources;
    assert_eq!(listed.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["lock"]);
    assert_eq!(look.ask::<String>(&["GET", "fencepost:text"]), "x");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_overwrites_costs_the_other_locks_nothing() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    // It learns of that when it renews, at a third of the lease.
    let locks = connect(&redis.url(), Duration::from_secs(6)).await;
    let mut all = Vec::new();
    for number in 0..20 {
        all.push(lock(&locks, &format!("lock{number}")).await);
    }
    redis.look().ask::<()>(&["SET", "fencepost:lock7", "x"]);
    let overwritten = all.remove(7);
    within(SOON, overwritten.lost()).await;
    for guard in &all {
        guard.ensure_held().unwrap_or_else(|error| panic!("{error}"));
    }
    let start = Instant::now();
    overwritten.release().await.expect_err("it is lost");
    assert!(start.elapsed() < SOON / 2, "what cannot be mended is not tried for long");
    for guard in all {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_key_is_overwritten_does_not_hold_up_the_client_s_end() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new()).unwrap();
    let locks = connect(&redis.url(), LONG).await;
    let (released, dropped) = (lock(&locks, "released").await, lock(&locks, "dropped").await);
    let mut look = redis.look();
    for name in ["released", "dropped"] {
        look.ask::<()>(&["SET", &format!("fencepost:{name}"), "x"]);
    }
    let error = released.release().await.expect_err("it is lost");
    assert!(error.to_string().contains("prefix="), "{error}");
    drop(dropped);
    within(SOON, locks.close()).await;
    assert_eq!(look.ask::<Vec<String>>(&["MGET", "fencepost:released", "fencepost:dropped"]), ["x", "x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_publish_the_next_one_asks_by_itself() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().user("app", "secret")).unwrap();
    redis.look().ask::<()>(&["ACL", "SETUSER", "app", "-publish"]);
    let locks = connect(&redis.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let first = wait(&locks, "lock", 1).await;
    let second = wait(&locks, "lock", 2).await;
    guard.release().await.unwrap();
    let guard = granted(first, SOON).await;
    guard.release().await.unwrap();
    // By the other way through the scripts: several are admitted at once.
    let mut guard = granted(second, SOON).await;
    guard.extend(LONG).await.unwrap();
    let readers = [1, 2].map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.rwlock("lock")?.read().await })
    });
    crate::kit::line_of(&locks, "lock", 2).await;
    guard.release().await.unwrap();
    for reader in readers {
        granted(reader, SOON).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_is_denied() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().user("app", "secret")).unwrap();
    let mut look = redis.look();
    for command in ["hset", "hget", "time", "evalsha", "pexpireat"] {
        look.ask::<()>(&["ACL", "SETUSER", "app", "+@all", &format!("-{command}")]);
        let locks = connect(&redis.url(), LONG).await;
        let error = locks.mutex("lock").unwrap().lock().wait(WAIT).await.expect_err("he may not");
        assert!(error.is_denied(), "{command}: {error}");
        assert!(error.to_string().contains("docs/backends/redis.md"), "{command}: {error}");
        look.ask::<()>(&["FLUSHALL"]);
    }
    for rule in ["resetkeys", "resetchannels"] {
        look.ask::<()>(&["ACL", "SETUSER", "app", "+@all", "allkeys", "allchannels", rule]);
        let outcome = async {
            let locks = Client::builder().connect(&registry(), &redis.url()).await?;
            locks.mutex("lock")?.lock().wait(WAIT).await
        };
        let error = outcome.await.expect_err("he may not");
        assert!(error.is_denied(), "{rule}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_no_more_while_he_waits_is_told() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().user("app", "secret")).unwrap();
    let held = lock(&connect(&redis.url(), LONG).await, "lock").await;
    // A renewal at an eighth of the lease falls between two checks of one second.
    let builder =
        Client::builder().ttl(Duration::from_secs(5)).connect_wait(SOON).outage(Duration::from_secs(2));
    let locks = builder.connect(&registry(), &redis.url()).await.unwrap();
    let waiting = wait(&locks, "lock", 1).await;
    redis.look().ask::<()>(&["ACL", "SETUSER", "app", "-evalsha"]);
    let outcome = within(3 * SOON, waiting).await.expect("it does not panic");
    let error = outcome.expect_err("he may not");
    assert!(error.is_denied(), "{error}");
    redis.look().ask::<()>(&["ACL", "SETUSER", "app", "+evalsha"]);
    held.release().await.unwrap();
}

/// Returns the rules that docs/backends/redis.md gives for a user, and takes all others away.
pub(crate) fn enough() -> String {
    let page = include_str!("../../../../docs/backends/redis.md");
    let (_, section) = page.split_once("## Rights of a user").expect("the page has the rights of a user");
    let (_, block) = section.split_once("```text\n").expect("its first block is the list");
    let (rules, _) = block.split_once("```").expect("the block ends");
    format!("resetkeys resetchannels nocommands {rules}")
}

/// The further rights at a node of a Redlock.
const OF_NODES: &str =
    "~redlock:fencepost:* +info +client|tracking +pubsub|numsub +pexpire +zadd +zrange +zrem";

pub(crate) fn allow(redis: &Redis, rules: &str) {
    let words: Vec<_> = ["ACL", "SETUSER", "app"].into_iter().chain(rules.split_whitespace()).collect();
    redis.look().ask::<()>(&words);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_page_says_is_enough_is_enough() {
    needs!(REDIS);
    let redis = Redis::start(&Config::new().user("app", "secret")).unwrap();
    allow(&redis, &enough());
    let locks = connect(&redis.url(), LONG).await;
    let guard = lock(&locks, "lock").await;
    let waiting = wait(&locks, "lock", 1).await;
    locks.list("", &Page::default()).await.unwrap();
    locks.evict("lock", guard.token(), &Default::default()).await.unwrap();
    within(SOON, guard.lost()).await;
    assert!(guard.release().await.is_err_and(|error| error.is_lost()), "it was evicted");
    granted(waiting, SOON).await.release().await.unwrap();

    let deployment = Sentinel::start(1, &Config::new().user("app", "secret")).unwrap();
    for node in [deployment.master(), deployment.replica()] {
        allow(node, &enough());
        allow(node, "+role");
    }
    lock(&connect(&deployment.url(), LONG).await, "lock").await.release().await.unwrap();

    let cluster = Cluster::start(&Config::new().user("app", "secret")).unwrap();
    for node in cluster.nodes() {
        allow(node, &enough());
        allow(node, "+cluster|slots +asking");
    }
    lock(&connect(&cluster.url(), LONG).await, "lock").await.release().await.unwrap();

    let masters = Masters::start(3, &Config::new().user("app", "secret")).unwrap();
    for node in masters.nodes() {
        allow(node, &enough());
        allow(node, OF_NODES);
    }
    let locks = connect(&masters.url(), Duration::from_secs(30)).await;
    fencepost_redis::redlock::vouch(&patient(&masters.url()), locks.runtime().clone()).await.unwrap();
    let guard = lock(&locks, "lock").await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.mutex("lock")?.lock().await });
    assert!(locks.mutex("lock").unwrap().try_lock().await.unwrap().is_none(), "two hold it");
    guard.release().await.unwrap();
    granted(waiting, SOON).await.release().await.unwrap();
    for node in masters.nodes() {
        let log: Vec<redis::Value> = node.look().ask(&["ACL", "LOG"]);
        assert!(log.is_empty(), "it may not do all that it needs: {log:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_something_else_are_told() {
    needs!(REDIS);
    let connected = async |url: &str| Client::builder().connect(&registry(), &patient(url)).await;
    // As every server before 6.0.
    let config = Config::new().line("rename-command HELLO \"\"").line("user app on >topsecret ~* &* +@all");
    let old = Redis::start(&config).unwrap();
    let error = connected(&old.url()).await.expect_err("it has no RESP3");
    assert!(error.is_configuration() && error.to_string().contains("too old"), "{error}");
    // It repeats what it has not understood.
    let error = connected(&old.url().replace("redis://", "redis://app:topsecret@")).await;
    let error = error.expect_err("it has no RESP3");
    assert!(!format!("{error} {error:?}").contains("topsecret"), "{error:?}");

    let deployment = Sentinel::start(1, &Config::new()).unwrap();
    let replica = connect(&deployment.replica().url(), LONG).await;
    let error = replica.mutex("lock").unwrap().lock().wait(WAIT).await.expect_err("it takes no writes");
    assert!(error.to_string().contains("is a replica"), "{error}");
    let error = connected(&format!("redis+sentinel://{}/locks", deployment.master().address())).await;
    let error = error.expect_err("it is no sentinel");
    assert!(error.is_configuration() && error.to_string().contains("no sentinel"), "{error}");
    let error = connected(&format!("redis+cluster://{}", deployment.master().address())).await;
    assert!(error.expect_err("it is no cluster").is_configuration());
    let sentinel = format!("redis://{}", deployment.sentinels()[0].address());
    let outcome = async { connected(&sentinel).await?.mutex("lock")?.lock().wait(WAIT).await };
    let error = outcome.await.expect_err("it keeps no data");
    assert!(error.to_string().contains("sentinel"), "{error}");
}
