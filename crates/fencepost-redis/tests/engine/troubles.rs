//! Many take turns while an operator troubles the server: nobody overlaps, nobody is refused, tokens grow.

use fencepost_testkit::needs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_testkit::redis::{Config, Look, Redis};

use crate::kit::{LONG, SOON, connect, eventually, within};

/// The record of the clients that take turns.
#[derive(Default)]
struct Seen {
    inside: AtomicU64,
    turns: AtomicU64,
    last: AtomicU64,
    over: AtomicBool,
}

/// 24 tasks of three clients take turns, while the server is troubled again and again until they have gone on each time.
async fn take_turns(trouble: impl Fn(&mut Look)) {
    let redis = Redis::start(&Config::new()).unwrap();
    let seen = Arc::new(Seen::default());
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = connect(&redis.url(), LONG).await;
        for _ in 0..8 {
            let (locks, seen) = (locks.clone(), Arc::clone(&seen));
            tasks.push(tokio::spawn(async move {
                let lock = locks.mutex("lock").unwrap();
                while !seen.over.load(Ordering::SeqCst) {
                    let guard = lock.lock().await.expect("waiting is no error");
                    assert_eq!(seen.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    let token = guard.token().get();
                    assert!(seen.last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                    tokio::task::yield_now().await;
                    seen.inside.fetch_sub(1, Ordering::SeqCst);
                    seen.turns.fetch_add(1, Ordering::SeqCst);
                    guard.release().await.expect("it was held");
                }
            }));
        }
    }
    let mut look = redis.look();
    for _ in 0..8 {
        let before = seen.turns.load(Ordering::SeqCst);
        trouble(&mut look);
        eventually("they go on", async || seen.turns.load(Ordering::SeqCst) > before + 24).await;
    }
    seen.over.store(true, Ordering::SeqCst);
    for task in tasks {
        within(4 * SOON, task).await.expect("nothing goes wrong");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_killed() {
    needs!(REDIS);
    take_turns(|look| {
        for kind in ["pubsub", "normal"] {
            look.ask::<i64>(&["CLIENT", "KILL", "TYPE", kind]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_forgotten() {
    needs!(REDIS);
    take_turns(|look| look.ask(&["SCRIPT", "FLUSH"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stands_still() {
    needs!(REDIS);
    take_turns(|look| {
        look.ask::<()>(&["CLIENT", "PAUSE", "300", "WRITE"]);
        look.ask::<()>(&["DEBUG", "SLEEP", "0.2"]);
    })
    .await;
}
