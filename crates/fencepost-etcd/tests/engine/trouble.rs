//! Broken streams, deleted keys and members that are cut off.

use fencepost_testkit::needs;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::kit::{SOON, connect, eventually, in_line, registry, server, stand, try_connect};
use fencepost_core::{Client, Eviction};
use fencepost_testkit::etcd::{Cluster, Config, Proxied};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::Proxy;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_outlives_its_stream_and_a_compaction() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    let (far, near) = (connect(&etcd.url()).await, connect(&etcd.direct_url()).await);
    let guard = near.mutex("stock").unwrap().lock().await.unwrap();
    let waiting = stand(&far, "stock", 2).await;
    etcd.cut().unwrap();
    // No watch tells these events, and the compaction removes them.
    let between = near.mutex("other").unwrap().lock().await.unwrap();
    let revision = between.token().to_string();
    between.release().await.unwrap();
    guard.release().await.unwrap();
    etcd.look().run(&["compact", &revision]);
    etcd.mend().unwrap();
    waiting.granted().await.release().await.unwrap();
    far.close().await;
    near.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_alone_queue_behind_others_and_survive_a_lost_reply() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    let (far, near) = (connect(&etcd.url()).await, connect(&etcd.direct_url()).await);
    let mutex = far.mutex("stock").unwrap();
    let alone = async || {
        for _ in 0..6 {
            mutex.lock().await.unwrap().release().await.unwrap();
        }
    };
    // Another client holds the lock.
    alone().await;
    let guard = near.mutex("stock").unwrap().lock().await.unwrap();
    let waiting = stand(&far, "stock", 2).await;
    guard.release().await.unwrap();
    waiting.granted().await.release().await.unwrap();
    // The reply is lost.
    alone().await;
    etcd.delay(Duration::from_millis(300)).unwrap();
    let again = far.mutex("stock").unwrap();
    let asked = tokio::spawn(async move { again.lock().await });
    eventually("the key is made", async || etcd.look().keys("stock/").len() == 1).await;
    etcd.cut().unwrap();
    etcd.mend().unwrap();
    let guard = asked.await.unwrap().unwrap();
    assert_eq!(etcd.look().keys("stock/").len(), 1, "the first key was forgotten");
    guard.release().await.unwrap();
    assert!(etcd.look().keys("stock/").is_empty());
    far.close().await;
    near.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_key_is_deleted_stands_in_line_again() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let before = etcd.look().keys("stock/");
    let waiting = stand(&locks, "stock", 2).await;
    let own: Vec<_> = etcd.look().keys("stock/").into_iter().filter(|key| !before.contains(key)).collect();
    etcd.look().run(&["del", &own[0]]);
    eventually("it is back in the queue", || async {
        in_line(&locks, "stock").await == 2 && !etcd.look().keys("stock/").contains(&own[0])
    })
    .await;
    assert!(!waiting.is_answered());
    guard.release().await.unwrap();
    waiting.granted().await.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbours_key_that_lives_again_and_again_lets_nobody_in() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let (locks, look) = (connect(&etcd.url()).await, etcd.look());
    // A Go program with one session locks and unlocks in a loop.
    let lease = look.run(&["lease", "grant", "60"]);
    let lease = lease.split_whitespace().nth(1).unwrap();
    let (key, option) = (format!("stock/{lease}"), format!("--lease={lease}"));
    look.run(&["put", &option, &key, ""]);
    let first = stand(&locks, "stock", 2).await;
    for _ in 0..20 {
        // Its next key is behind this claim's.
        look.run(&["del", &key]);
        look.run(&["put", &option, &key, ""]);
    }
    let guard = first.granted().await;
    let second = stand(&locks, "stock", 3).await;
    guard.release().await.unwrap();
    eventually("only the neighbour is before it", || async { in_line(&locks, "stock").await == 2 }).await;
    assert!(!second.is_answered(), "the end of an earlier validity was taken for that of the present one");
    look.run(&["del", &key]);
    second.granted().await.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_requests_end_in_time() {
    needs!(ETCD, ETCDCTL);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let locks = connect(&cluster.url()).await;
    locks.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    let impatient = try_connect(&cluster.url()).await.unwrap();
    for member in [0, 1] {
        cluster.trouble(member, |server, _| server.kill()).unwrap();
    }
    let start = Instant::now();
    let error = impatient.mutex("stock").unwrap().try_lock().await.unwrap_err();
    assert!(error.is_unreachable() && error.is_transient(), "{error}");
    // At most four attempts of 4 s each.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    cluster.trouble(0, |server, _| server.restart()).unwrap();
    cluster.settle().unwrap();
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    guard.release().await.unwrap();
    locks.close().await;
    impatient.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_cut_off_from_the_others_keeps_nobody_waiting() {
    needs!(ETCD, ETCDCTL);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let leader = cluster.leader().unwrap();
    let locks = connect(&cluster.url()).await;
    let near = connect(&cluster.direct_url()).await;
    let guard = near.mutex("stock").unwrap().lock().await.unwrap();
    let waiting = stand(&locks, "stock", 2).await;
    // Each member is stopped in turn, also the one with the watch.
    for member in [leader, (leader + 1) % 3] {
        cluster.trouble(member, |server, _| server.stop()).unwrap();
        let other = locks.mutex("other").unwrap().lock().wait(SOON * 4).await.unwrap();
        other.release().await.unwrap();
        cluster.trouble(member, |server, _| server.cont()).unwrap();
        cluster.settle().unwrap();
    }
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
    waiting.within(SOON * 4).await.release().await.unwrap();
    locks.close().await;
    near.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_by_the_hundred_it_leaves_an_empty_folder() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("stock").unwrap();
    for millis in 0..200u64 {
        let wait = Duration::from_micros(millis * 20);
        let _ = tokio::time::timeout(wait, mutex.lock().into_future()).await;
    }
    guard.release().await.unwrap();
    eventually("nobody is left", || async { in_line(&locks, "stock").await == 0 }).await;
    locks.close().await;
    assert!(etcd.look().keys("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_said_so() {
    needs!(ETCD, ETCDCTL);
    let error = try_connect("etcd://127.0.0.1:1").await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_whose_answer_was_lost_is_none_of_somebody_else() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    // Two addresses of one server stand for two members.
    let far = connect(&format!("{},{}?timeout=20s", etcd.url(), etcd.address())).await;
    let near = connect(&etcd.direct_url()).await;
    let guard = near.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
    let token = guard.token();
    // The reply is slower than the check that the request took effect, even on a busy machine.
    etcd.delay(Duration::from_millis(1_500)).unwrap();
    let asked = far.clone();
    let now = Eviction::new(true);
    let evicted = tokio::spawn(async move { asked.evict("stock", token, &now).await });
    eventually("the key is gone", async || etcd.look().keys("stock/").is_empty()).await;
    etcd.cut().unwrap();
    evicted.await.unwrap().unwrap();
    drop(guard);
    far.close().await;
    near.close().await;
}

#[test]
fn what_is_dropped_after_its_runtime_is_taken_back_by_another_member() {
    needs!(ETCD, ETCDCTL);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    // Two addresses of one server stand for two members.
    let url = format!("{},{}", etcd.url(), etcd.address());
    let first = runtime();
    let locks = first.block_on(async {
        let locks = connect(&url).await;
        locks.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
        locks
    });
    etcd.silence().unwrap();
    let mutex = locks.mutex("stock").unwrap();
    let mut asked = Box::pin(mutex.lock().into_future());
    let pending = first.block_on(poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx).is_pending())));
    assert!(pending, "who answered?");
    drop(first);
    drop(asked);
    runtime().block_on(async {
        eventually("it is taken back", async || locks.backlog() == 0).await;
        etcd.mend().unwrap();
        assert!(etcd.look().keys("stock/").is_empty());
        locks.close().await;
    });
}

/// A server without TLS either says something else, or waits for a line of text that never ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_named() {
    for reply in ["", "-ERR unknown command\r\n"] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("etcds://{}?timeout=500ms", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(reply.as_bytes()).await.unwrap();
                open.push(stream);
            }
        });
        let start = Instant::now();
        loop {
            let error = try_connect(&url).await.expect_err("it does not speak TLS");
            if error.is_unreachable() && error.to_string().contains("does not reply in TLS") {
                break;
            }
            // On a busy machine the time of the request may end before it has a connection.
            assert!(start.elapsed() < SOON, "{error}");
        }
        server.abort();
    }
}

/// A silent member in front of the others is passed over at the start, and later by the call behind the one that it held up.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_first_member_is_passed_over() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let mut proxy = Proxy::start(etcd.address()).unwrap();
    let url = format!("etcd://{},{}?timeout=20s", proxy.address(), etcd.address());
    let open = async |attempt| {
        let builder = Client::builder().connect_wait(SOON / 5).attempt_timeout(attempt).release_timeout(SOON);
        builder.connect(&registry(), &url).await.unwrap()
    };
    let before = open(Duration::from_secs(1)).await;
    before.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    proxy.silence().unwrap();
    // A request gives the silent member a third of its time, which is longer than this.
    let after = open(SOON / 5).await;
    assert!(after.mutex("order").unwrap().try_lock().await.unwrap().is_some());
    let mutex = before.mutex("stock").unwrap();
    let _ = mutex.try_lock().await;
    eventually("the lock that was dropped is free", || async {
        mutex.try_lock().await.is_ok_and(|granted| granted.is_some())
    })
    .await;
    after.close().await;
    before.close().await;
}
