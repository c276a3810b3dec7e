//! Many take turns while an operator troubles the server: nobody overlaps, nobody is refused, tokens grow.

use fencepost_testkit::needs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_core::sync::Mutex;
use fencepost_core::{Guard, GuardView};
use fencepost_testkit::redis::{Config, Look, Redis};

use crate::kit::{LONG, SOON, connect, eventually, within};

/// The record of the clients that take turns.
#[derive(Default)]
struct Seen {
    /// The last one that entered, while it is inside.
    inside: Mutex<Option<GuardView>>,
    turns: AtomicU64,
    last: AtomicU64,
    over: AtomicBool,
}

impl Seen {
    /// Notes that the guard is inside. A grant that was handed over ends after two seconds if the server does not confirm it, so on a busy machine
    /// somebody may still be inside who knows that it holds nothing.
    fn enter(&self, guard: &Guard) {
        let mut inside = self.inside.lock();
        if guard.ensure_held().is_err() {
            return;
        }
        let is_beside = inside.as_ref().is_some_and(|other| other.ensure_held().is_ok());
        assert!(!is_beside, "two hold it");
        let token = guard.token().get();
        assert!(self.last.swap(token, Ordering::SeqCst) < token, "tokens grow");
        *inside = Some(guard.view());
    }

    fn leave(&self, guard: &Guard) {
        let mut inside = self.inside.lock();
        if inside.as_ref().is_some_and(|last| last.token() == guard.token()) {
            *inside = None;
        }
        self.turns.fetch_add(1, Ordering::SeqCst);
    }
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
                    seen.enter(&guard);
                    tokio::task::yield_now().await;
                    seen.leave(&guard);
                    let until = guard.valid_until();
                    let released = guard.release().await;
                    let has_ended = locks.runtime().clock().now() >= until;
                    assert!(released.is_ok() || has_ended, "it was held: {released:?}");
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
