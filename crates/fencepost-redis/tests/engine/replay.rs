//! A request that arrives when its sender has long given up.

use crate::kit::{LONG, SOON, TRIES, connect, eventually, lock, registry, within};
use fencepost_core::Client;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Proxied};
use redis::{Cmd, Value, from_redis_value};
use std::time::{Duration, Instant};

/// The words of the request to enter of the holder with this label, from the server's log of slow commands.
fn entered(connection: &mut redis::Connection, label: &str) -> Option<Vec<Vec<u8>>> {
    let log: Vec<Vec<Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query(connection).expect("the log can be read");
    let commands = log.into_iter().rev().filter_map(|entry| {
        let words: Vec<Vec<u8>> = from_redis_value(entry.get(3)?.clone()).ok()?;
        Some(words)
    });
    // Its one key, the name of the request, and one argument, which says who it is.
    commands.into_iter().find(|words| {
        let enters = words[0].eq_ignore_ascii_case(b"EVALSHA") && words.len() == 6;
        enters && words[5].windows(label.len()).any(|part| part == label.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_replayed_behind_its_withdrawal_takes_nothing() {
    needs!(REDIS);
    let config = Config::new().line("slowlog-log-slower-than 0").line("slowlog-max-len 1000");
    let mut proxied = Proxied::start(&config).unwrap();
    let locks =
        Client::builder().ttl(LONG).connect_wait(SOON).connect(&registry(), &proxied.url()).await.unwrap();
    lock(&locks, "other").await.release().await.unwrap();
    proxied.look().ask::<()>(&["SLOWLOG", "RESET"]);
    let client = redis::Client::open(proxied.direct_url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let (delay, mut tries) = (Duration::from_millis(1_500), 0);
    let label = loop {
        assert!(tries < TRIES, "the answer was there in each of {TRIES} tries");
        tries += 1;
        let (label, sent) = (format!("late{tries}"), Instant::now());
        proxied.delay(delay).unwrap();
        let mutex = locks.mutex("lock").unwrap();
        let unanswered = mutex.lock().label(&label).wait(Duration::from_millis(200)).await;
        let arrives = || std::future::ready(entered(&mut connection, &label).is_some());
        eventually("the request arrives", arrives).await;
        // Its connection breaks before the answer comes, and the withdrawal goes by another one.
        proxied.cut().unwrap();
        let is_before = sent.elapsed() < 2 * delay;
        proxied.mend().unwrap();
        if is_before {
            unanswered.expect_err("nothing is answered");
            break label;
        }
        // On a busy machine the answer may have come. Then the request is sent once more, when nothing of it is left.
        drop(unanswered);
        eventually("it is withdrawn", async || locks.backlog() == 0).await;
    };
    let others = connect(&proxied.url(), LONG).await;
    let guard = lock(&others, "lock").await;
    guard.release().await.unwrap();
    within(SOON, locks.close()).await;
    // Acts as a network that delivers the request late.
    let words = entered(&mut connection, &label).expect("the request arrived");
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
    let delay = Duration::from_secs(2);
    for _ in 0..TRIES {
        let lease = lock(&others, "lock").await.detach().await.unwrap();
        proxied.delay(delay).unwrap();
        let (sent, own) = (Instant::now(), locks.clone());
        let releasing = tokio::spawn(async move { own.release(&lease).await });
        eventually("it is free", async || others.inspect("lock").await.unwrap().claims.is_empty()).await;
        // Its answer is still on its way, unless the machine is too slow.
        proxied.cut().unwrap();
        let is_before = sent.elapsed() < 2 * delay;
        proxied.mend().unwrap();
        let released = within(SOON + SOON, releasing).await.unwrap();
        if is_before {
            let error = released.expect_err("nobody knows what became of it");
            return assert!(error.is_unreachable(), "{error}");
        }
    }
    panic!("the answer was there in each of {TRIES} tries");
}
