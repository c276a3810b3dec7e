//! A request that arrives when its sender has long given up.

use crate::kit::{LONG, SOON, connect, eventually, lock, within};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Proxied};
use redis::{Cmd, Value, from_redis_value};
use std::time::Duration;

/// The words of the request to enter of the holder `late`, from the server's log of slow commands.
fn entered(connection: &mut redis::Connection) -> Option<Vec<Vec<u8>>> {
    let log: Vec<Vec<Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query(connection).expect("the log can be read");
    let commands = log.into_iter().rev().filter_map(|entry| {
        let words: Vec<Vec<u8>> = from_redis_value(entry.get(3)?.clone()).ok()?;
        Some(words)
    });
    // Its one key, the name of the request, and one argument, which says who it is.
    commands.into_iter().find(|words| {
        let enters = words[0].eq_ignore_ascii_case(b"EVALSHA") && words.len() == 6;
        enters && words[5].windows(4).any(|part| part == b"late")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_replayed_behind_its_withdrawal_takes_nothing() {
    needs!(REDIS);
    let config = Config::new().line("slowlog-log-slower-than 0").line("slowlog-max-len 1000");
    let mut proxied = Proxied::start(&config).unwrap();
    let locks = connect(&proxied.url(), LONG).await;
    lock(&locks, "other").await.release().await.unwrap();
    proxied.look().ask::<()>(&["SLOWLOG", "RESET"]);
    let client = redis::Client::open(proxied.direct_url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    proxied.delay(Duration::from_millis(1_500)).unwrap();
    let mutex = locks.mutex("lock").unwrap();
    let unanswered = mutex.lock().label("late").wait(Duration::from_millis(200)).await;
    unanswered.expect_err("nothing is answered");
    eventually("the request arrives", || std::future::ready(entered(&mut connection).is_some())).await;
    // Its connection breaks before the answer comes, and the withdrawal goes by another one.
    proxied.cut().unwrap();
    proxied.mend().unwrap();
    let others = connect(&proxied.url(), LONG).await;
    let guard = lock(&others, "lock").await;
    guard.release().await.unwrap();
    within(SOON, locks.close()).await;
    // Acts as a network that delivers the request late.
    let words = entered(&mut connection).expect("the request arrived");
    assert!(words.iter().all(|word| word.len() < 128), "the log has cut a word: {words:?}");
    let mut replay = Cmd::new();
    words.iter().for_each(|word| _ = replay.arg(word));
    assert_eq!(replay.query::<String>(&mut connection).unwrap(), "GONE");
    let guard = others.mutex("lock").unwrap().try_lock().await.unwrap().expect("nobody holds it");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_release_was_answered_by_a_broken_connection_is_not_called_lost() {
    needs!(REDIS);
    let mut proxied = Proxied::start(&Config::new()).unwrap();
    let others = connect(&proxied.direct_url(), LONG).await;
    let locks = connect(&format!("{}?timeout=30s", proxied.url()), LONG).await;
    // By now the server knows the script.
    let lease = lock(&others, "lock").await.detach().await.unwrap();
    locks.release(&lease).await.unwrap();
    let lease = lock(&others, "lock").await.detach().await.unwrap();
    proxied.delay(Duration::from_secs(2)).unwrap();
    let releasing = tokio::spawn(async move { locks.release(&lease).await });
    eventually("it is free", async || others.inspect("lock").await.unwrap().claims.is_empty()).await;
    // Its answer is still on its way.
    proxied.cut().unwrap();
    proxied.mend().unwrap();
    let error = within(SOON + SOON, releasing).await.unwrap().expect_err("nobody knows what became of it");
    assert!(error.is_unreachable(), "{error}");
}
