//! Writes that only the holder can make.

use std::time::{Duration, Instant};

use fencepost_core::{Clock, Eviction, Guard, Loss};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::wait::eventually;
use fencepost_testkit::zookeeper::{Config, Proxied, ZooKeeper};
use fencepost_zookeeper::{Guarded, Write};
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{SOON, bare, client, client_of, near, path, requests};

fn guarded(guard: &mut Guard) -> Guarded {
    let native = guard.native().expect("ZooKeeper has one");
    native.downcast_ref::<Guarded>().expect("it is this").clone()
}

fn set(path: &str, data: &str) -> Write {
    Write::Set { path: path.to_owned(), data: data.as_bytes().to_vec(), version: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_writes_and_an_evicted_one_is_refused() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let mut guard = locks.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut guard);
    let value = format!("{path}/value");
    let create = Write::Create { path: value.clone(), data: b"1".to_vec() };
    writer.commit(std::slice::from_ref(&create)).await.expect("it holds");
    // All or none.
    let error = writer.commit(&[set(&value, "2"), create]).await.expect_err("the node is there");
    assert!(error.is_mismatch() && error.to_string().contains("number 2"), "{error}");
    assert_eq!(bare.get_data(&value).await.expect("it is there").0, b"1");
    writer.commit(&[set(&value, "3")]).await.expect("it holds");
    locks.evict("stock", guard.token(), &Eviction::default()).await.expect("it holds");
    assert!(writer.commit(&[set(&value, "4")]).await.expect_err("it was evicted").is_lost());
    let _ = guard.release().await;
    assert!(writer.commit(&[set(&value, "5")]).await.expect_err("it has let go").is_lost());
    assert_eq!(bare.get_data(&value).await.expect("it is there").0, b"3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_tells_the_guard() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, bare) = (near(&path).await, bare().await);
    let mut guard = locks.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut guard);
    bare.delete(writer.path(), None).await.expect("it is there");
    assert!(writer.commit(&[set("/value", "1")]).await.expect_err("its node is gone").is_lost());
    assert_eq!(guard.ensure_held().expect_err("it was told").loss(), Some(Loss::Deleted));
}

/// The answer to its write may come before the notice of its eviction.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_tells_a_guard_that_it_was_evicted_at_once() {
    needs!(ZOOKEEPER);
    let path = path();
    let (locks, other, bare) = (near(&path).await, near(&path).await, bare().await);
    let mut guard = locks.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut guard);
    let (token, now) = (guard.token(), Eviction::new(true).because("moved"));
    let write = async {
        // The node is gone while the evicting client waits for the holder.
        eventually(SOON, "the node is gone", async || {
            bare.check_stat(writer.path()).await.expect("it answers").is_none()
        })
        .await;
        writer.commit(&[set("/value", "1")]).await
    };
    let (evicted, written) = tokio::join!(other.evict("stock", token, &now), write);
    evicted.expect("it holds");
    assert_eq!(written.expect_err("its node is gone").loss(), Some(Loss::Evicted));
    assert_eq!(guard.ensure_held().expect_err("it was told").loss(), Some(Loss::Evicted));
    drop(guard);
    locks.close().await;
    other.close().await;
}

/// It is told as soon as the answer is there, although each further answer takes longer than it may wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_of_a_far_holder_tells_whether_it_was_evicted() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let far = client(&format!("{}/g?session=30s", server.url())).await;
    let near = client(&format!("{}/g?session=30s", server.direct_url())).await;
    let bare = zookeeper_client::Client::connect(&server.address().to_string()).await.expect("it connects");
    for evicted in [true, false] {
        let mut guard = far.mutex("stock").expect("a good name").lock().await.expect("it is free");
        let writer = guarded(&mut guard);
        let (token, now) = (guard.token(), Eviction::new(true).because("moved"));
        let delay = Duration::from_millis(500);
        server.delay(delay).expect("the network can be slow");
        let end = async {
            match evicted {
                true => near.evict("stock", token, &now).await.expect("it holds"),
                false => bare.delete(writer.path(), None).await.expect("it is there"),
            }
        };
        let write = async {
            eventually(SOON, "the node is gone", async || {
                bare.check_stat(writer.path()).await.expect("it answers").is_none()
            })
            .await;
            let sent = Instant::now();
            let error = writer.commit(&[set("/value", "1")]).await.expect_err("its node is gone");
            (error, sent.elapsed())
        };
        let ((), (error, elapsed)) = tokio::join!(end, write);
        let loss = if evicted { Loss::Evicted } else { Loss::Deleted };
        assert_eq!(error.loss(), Some(loss));
        assert!(elapsed < delay * 3, "one answer takes {:?}, and it took {elapsed:?}", delay * 2);
        assert_eq!(guard.ensure_held().expect_err("it was told").loss(), Some(loss));
        assert_eq!(guard.loss_detail().is_some_and(|detail| detail.contains("moved")), evicted);
        server.mend().expect("the network can be mended");
    }
    far.close().await;
    near.close().await;
}

/// The holder's clock stands still, so that each answer is a fast one.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_a_fast_answer_is_one_request() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    let locks = client_of(&Clock::manual(), &format!("{}/g?session=30s", server.url())).await;
    let mut guard = locks.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut guard);
    let before = requests(server.address());
    for _ in 0..50 {
        writer.commit(&[set("/g", "1")]).await.expect("it holds");
    }
    // The request for the count is no client's.
    let sent = requests(server.address()) - before;
    assert!((50..=60).contains(&sent), "{sent} requests for 50 writes");
    guard.release().await.expect("it was held");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_from_an_ended_session_is_refused() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let far = client(&format!("{}/g?session=1s", server.url())).await;
    let near = client(&format!("{}/g?session=8s", server.direct_url())).await;
    let mut stale = far.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut stale);
    let bare = zookeeper_client::Client::connect(&server.address().to_string()).await.expect("it connects");
    bare.create("/value", b"1", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .expect("it is made");
    server.silence().expect("the network can go dark");
    let lock = near.mutex("stock").expect("a good name");
    let mut guard = lock.lock().wait(SOON).await.expect("the session of the other one ends");
    guarded(&mut guard).commit(&[set("/value", "2")]).await.expect("it holds");
    server.mend().expect("the network can be mended");
    // It would write over its successor's work now.
    let error = writer.commit(&[set("/value", "old")]).await.expect_err("it is stale");
    assert!(error.is_lost() || error.is_unreachable(), "{error}");
    assert_eq!(bare.get_data("/value").await.expect("it is there").0, b"2");
    guard.release().await.expect("it was held");
}
