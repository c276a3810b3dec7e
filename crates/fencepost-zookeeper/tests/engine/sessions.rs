//! Sessions that end, connections that break, answers that are lost.

use fencepost_testkit::needs;
use std::future::{Future, poll_fn};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use fencepost_core::{Client, Error, Guard, Loss, Registry, State};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::Proxy;
use fencepost_testkit::zookeeper::{Config, Proxied, word};

use crate::kit::{LASTING, SOON, address, client, eventually, nodes, path, try_client};

fn server() -> Proxied {
    Proxied::start(&Config::new()).expect("a server starts")
}

/// Whether a lock was lost with its session, and not by a deletion.
fn is_of_session(error: &Error) -> bool {
    error.loss().is_some_and(|loss| loss != Loss::Deleted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_its_locks_along_and_the_next_one_comes_by_itself() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let locks = client(&format!("{}/s?session=2s", server.url())).await;
    let mutex = locks.mutex("lock").expect("a good name");
    let start = Instant::now();
    loop {
        let guard = mutex.lock().wait(SOON).await.expect("it is free");
        let token = guard.token();
        server.cut().expect("the network can be cut");
        tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
        server.mend().expect("the network can be mended");
        // By another session, while the lost guard still exists: it holds nothing back.
        let next = mutex.lock().wait(SOON).await.expect("a new session comes by itself");
        assert!(next.token() > token);
        assert!(guard.release().await.expect_err("it was lost").is_lost());
        match next.release().await {
            // On a busy machine the next session may end as well, before this.
            Err(error) if is_of_session(&error) && start.elapsed() < SOON => {}
            released => break released.expect("a late release takes nothing from its successor"),
        }
    }
    eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_suspect_at_once_and_no_loss() {
    needs!(ZOOKEEPER);
    let mut server = server();
    // The guard is held again with the next probe of the session, which comes after a sixth of its time.
    let locks = client(&format!("{}/s?session=12s", server.url())).await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    server.cut().expect("the network can be cut");
    eventually("the guard is suspect", || guard.state() == State::Suspect).await;
    eventually("it says why", || guard.last_renewal_error().is_some_and(|why| why.contains("ZooKeeper")))
        .await;
    server.mend().expect("the network can be mended");
    eventually("the guard is held again", || guard.state() == State::Held).await;
    assert_eq!(guard.last_renewal_error(), None);
    guard.release().await.expect("it was held all the time");
}

/// A server that is just starting may accept a connection and never answer on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_never_answered_is_replaced() {
    needs!(ZOOKEEPER);
    let mut proxy = Proxy::start(address()).expect("a proxy starts");
    let locks = client(&format!("zookeeper://{}{}?session=40s&timeout=1s", proxy.address(), path())).await;
    let guard = locks.mutex("lock").expect("a good name").lock().await.expect("it is free");
    proxy.silence().expect("the network can go dark");
    let before = proxy.passed();
    eventually("the silent connection and two silent ones after it are replaced", || {
        proxy.passed() > before + 2
    })
    .await;
    proxy.mend().expect("the network can be mended");
    guard.release().await.expect("it was held all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_that_never_answers_holds_up_no_connect() {
    needs!(ZOOKEEPER);
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hosts = format!("{},{}", hangs.local_addr().expect("an address"), address());
    // The server that hangs is given up after a fifth of the session.
    let url = format!("zookeeper://{hosts}{}?session=12s&timeout=20s", path());
    // Which one is tried first is a matter of chance.
    for _ in 0..6 {
        let locks = try_client(&url).await.expect("the other one answers");
        drop(locks.mutex("lock").expect("a good name").lock().await.expect("it is free"));
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_that_falls_silent_costs_nobody_its_session() {
    needs!(ZOOKEEPER);
    let mut server = server();
    // The second one is the same server, by a way that stays. Which one each is with, and which one it tries next, is a matter of
    // chance.
    let url = format!("{},{}/two?session=30s", server.url(), server.address());
    let mut held = Vec::new();
    for number in 0..12 {
        let locks = client(&url).await;
        let mutex = locks.mutex(&format!("lock{number}")).expect("a good name");
        held.push((mutex.lock().await.expect("it is free"), locks));
    }
    server.silence().expect("the network can fail");
    let start = Instant::now();
    for (guard, locks) in &held {
        while let Err(error) = locks.inspect("lock").await {
            assert!(error.is_unreachable() && start.elapsed() < SOON, "{error}");
        }
        guard.ensure_held().expect("the other way is open");
    }
    server.mend().expect("the network can be mended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_finds_its_own_node() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let locks = client(&format!("{}/s?{LASTING}", server.url())).await;
    for _ in 0..5 {
        server.delay(Duration::from_millis(300)).expect("the network can be slow");
        let mutex = locks.mutex("lock").expect("a good name");
        let asked = tokio::spawn(async move { mutex.lock().await });
        // The node is there, and the answer is on its way.
        eventually("the node is made", || !nodes(server.address(), "/s").is_empty()).await;
        server.cut().expect("the network can be cut");
        server.mend().expect("the network can be mended");
        let guard = asked.await.expect("no panic").expect("what was lost is asked again");
        let there = nodes(server.address(), "/s");
        assert_eq!(there.len(), 1, "the first node was forgotten: {there:?}");
        guard.ensure_held().expect("it is held");
        guard.release().await.expect("it was held");
        eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_given_up_while_its_answer_was_on_its_way_leaves_nothing() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let locks = client(&format!("{}/s?{LASTING}", server.url())).await;
    for _ in 0..5 {
        server.delay(Duration::from_millis(300)).expect("the network can be slow");
        let mutex = locks.mutex("lock").expect("a good name");
        let asked = tokio::spawn(async move { mutex.lock().await });
        eventually("the node is made", || !nodes(server.address(), "/s").is_empty()).await;
        asked.abort();
        server.cut().expect("the network can be cut");
        server.mend().expect("the network can be mended");
        eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_server_that_hangs_are_bounded() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let locks = client(&format!("{}/s?session=30s&timeout=500ms", server.url())).await;
    locks
        .mutex("lock")
        .expect("a good name")
        .lock()
        .await
        .expect("it is free")
        .release()
        .await
        .expect("it was held");
    server.stop().expect("the server can be stopped");
    let start = Instant::now();
    let mutex = locks.mutex("lock").expect("a good name");
    let error = mutex.lock().wait(Duration::from_millis(700)).await.expect_err("nobody answers");
    assert!(error.is_unreachable() || error.is_timeout(), "{error}");
    assert!(locks.inspect("lock").await.expect_err("nobody answers").is_unreachable());
    assert!(start.elapsed() < SOON, "after {:?}", start.elapsed());
    server.cont().expect("the server can go on");
    let guard = mutex.lock().wait(SOON).await.expect("it answers again");
    guard.release().await.expect("it was held");
    eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_given_up_in_an_outage_longer_than_its_lease_leaves_nothing() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let near = client(&format!("{}/s?{LASTING}", server.direct_url())).await;
    let far = client(&format!("{}/s?session=60s&timeout=500ms", server.url())).await;
    let guard = near.mutex("lock").expect("a good name").lock().await.expect("it is free");
    let mutex = far.mutex("lock").expect("a good name");
    let lease = Duration::from_millis(200);
    let asked = tokio::spawn(async move { mutex.lock().ttl(lease).await });
    eventually("it is in the queue", || nodes(server.address(), "/s").len() == 2).await;
    server.cut().expect("the network can be cut");
    asked.abort();
    let _ = asked.await;
    // Core cleans up for 6 s, for it takes the lease to have ended by then: past that it is the engine's own affair.
    assert_eq!(far.backlog(), 1, "core cleans up");
    eventually("core gives it up", || far.backlog() == 0).await;
    server.mend().expect("the network can be mended");
    eventually("the holder's node is left alone", || nodes(server.address(), "/s").len() == 1).await;
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_whose_connection_broke_are_woken() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let near = client(&format!("{}/s?{LASTING}", server.direct_url())).await;
    let far = client(&format!("{}/s?{LASTING}", server.url())).await;
    let mut slow = 0;
    for _ in 0..3 {
        let guard = near.mutex("lock").expect("a good name").lock().await.expect("it is free");
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let mutex = far.mutex("lock").expect("a good name");
                tokio::spawn(async move {
                    let guard = mutex.lock().await.expect("its turn comes");
                    guard.release().await.expect("it was held");
                })
            })
            .collect();
        eventually("all are in the queue", || nodes(server.address(), "/s").len() == 9).await;
        // The driver forgets such watches with the connection, and the server what happened meanwhile.
        server.cut().expect("the network can be cut");
        guard.release().await.expect("it was held");
        server.mend().expect("the network can be mended");
        let start = Instant::now();
        for waiting in waiting {
            waiting.await.expect("no panic");
        }
        // Sooner than by the look that each takes every 10 s.
        slow += u32::from(start.elapsed() > Duration::from_secs(9));
    }
    // A busy machine may hold one round up.
    assert!(slow <= 1, "{slow} of 3 rounds were as slow as that look");
}

/// The current holder, and the number of holders so far.
#[derive(Default)]
struct Visits {
    inside: AtomicUsize,
    done: AtomicUsize,
}

impl Visits {
    async fn visit(&self, guard: Guard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        guard.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_goes_through_a_session_while_the_server_is_yet_to_answer() {
    needs!(ZOOKEEPER);
    const LINE: usize = 5;
    let mut server = server();
    let ours = client(&format!("{}/s?{LASTING}", server.url())).await;
    let others = client(&format!("zookeeper://{}/s?{LASTING}", server.address())).await;
    let lock = ours.mutex("lock").expect("a good name");
    let start = Instant::now();
    loop {
        let visits = Arc::new(Visits::default());
        let wait = |lock: fencepost_core::Mutex| {
            let visits = Arc::clone(&visits);
            tokio::spawn(async move { visits.visit(lock.lock().await.expect("its turn comes")).await })
        };
        let first = lock.lock().await.expect("it is free");
        let mut queue: Vec<_> = (0..LINE).map(|_| wait(lock.clone())).collect();
        eventually("all are in the queue", || nodes(server.address(), "/s").len() == LINE + 1).await;
        queue.push(wait(others.mutex("lock").expect("a good name")));
        eventually("the last one does", || nodes(server.address(), "/s").len() == LINE + 2).await;
        server.delay(Duration::from_millis(300)).expect("the network can be slow");
        first.release().await.expect("it was held");
        let done = visits.done.load(Ordering::SeqCst);
        server.mend().expect("the network can be mended");
        for task in queue {
            task.await.expect("nobody else is there");
        }
        eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
        // A claim that does not know yet which node is before it needs the server once more.
        if done == LINE {
            break;
        }
        assert!(start.elapsed() < 3 * SOON, "the server was asked: {done} of {LINE} went at once");
    }
}

/// A guarded write that is under way must not take effect while the next one holds.
#[tokio::test]
async fn a_lock_with_guarded_writes_goes_on_when_its_node_is_gone() {
    needs!(ZOOKEEPER);
    let mut server = server();
    let locks = client(&format!("{}/s?{LASTING}", server.url())).await;
    let lock = locks.mutex("lock").expect("a good name");
    let start = Instant::now();
    let (mut lent, mut done) = (false, 0);
    while done == 0 || !lent {
        // Without such writes it goes on at once, in the end: else this would show nothing.
        lent = done > 0;
        let visits = Arc::new(Visits::default());
        let mut first = lock.lock().await.expect("it is free");
        assert!(!lent || first.native().is_some(), "a grant has a node");
        let queue: Vec<_> = (0..3)
            .map(|_| {
                let (lock, visits) = (lock.clone(), Arc::clone(&visits));
                tokio::spawn(async move { visits.visit(lock.lock().await.expect("its turn comes")).await })
            })
            .collect();
        eventually("all are in the queue", || nodes(server.address(), "/s").len() == 4).await;
        server.delay(Duration::from_millis(300)).expect("the network can be slow");
        let mut release = pin!(first.release());
        let asked = poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await;
        assert!(asked, "the server is slow");
        // The task that was woken by that runs now.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let went = visits.done.load(Ordering::SeqCst);
        server.mend().expect("the network can be mended");
        release.await.expect("it was held");
        for task in queue {
            task.await.expect("nobody else is there");
        }
        eventually("nothing is left", || nodes(server.address(), "/s").is_empty()).await;
        assert!(!lent || went == 0, "one held beside the node of the first");
        done += went;
        assert!(start.elapsed() < 3 * SOON, "the server was asked");
    }
}

/// Tasks of a host of its own outlive the client. Its session must not.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_ends_its_session() {
    needs!(ZOOKEEPER);
    let server = server();
    let host = Client::builder().connect(&Registry::new(), "memory:").await.expect("memory opens");
    let registry = fencepost_zookeeper::register(Registry::new());
    let builder = Client::builder().runtime(host.runtime().clone());
    let url = format!("{}/s?{LASTING}", server.url());
    let locks = builder.connect(&registry, &url).await.expect("it connects");
    let sessions = || {
        let text = word(server.address(), "mntr").expect("the server answers");
        let line = text.lines().find_map(|line| line.strip_prefix("zk_global_sessions"));
        line.and_then(|number| number.trim().parse::<u32>().ok()).expect("a count")
    };
    eventually("its session is there", || sessions() == 1).await;
    drop(locks);
    eventually("its session is over", || sessions() == 0).await;
}
