//! Writes that only the holder can make.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Clock, Eviction, Guard, Loss};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::wait::eventually;
use fencepost_testkit::zookeeper::{Config, Proxied, ZooKeeper};
use fencepost_zookeeper::{Guarded, Write};
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};

use crate::kit::{LASTING, SOON, address, bare, bare_at, client, client_of, near, path, requests};

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

/// The answer to its write may come before the notice of its eviction. The holder's clock stands still, so that it waits for the answer about
/// the notice also if the server is busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_tells_a_guard_that_it_was_evicted_at_once() {
    needs!(ZOOKEEPER);
    let path = path();
    let locks = client_of(&Clock::manual(), &format!("zookeeper://{}{path}?{LASTING}", address())).await;
    let (other, bare) = (near(&path).await, bare().await);
    let mut guard = locks.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut guard);
    let (token, now) = (guard.token(), Eviction::new(true).because("moved"));
    let write = async {
        // The node is gone while the evicting client waits for the holder.
        eventually(SOON, "the node is gone", async || {
            bare.check_stat(writer.path()).await.expect("it answers").is_none()
        })
        .await;
        timeout(SOON, writer.commit(&[set("/value", "1")])).await.expect("it is answered")
    };
    let (evicted, written) = tokio::join!(other.evict("stock", token, &now), write);
    evicted.expect("it holds");
    assert_eq!(written.expect_err("its node is gone").loss(), Some(Loss::Evicted));
    assert_eq!(guard.ensure_held().expect_err("it was told").loss(), Some(Loss::Evicted));
    drop(guard);
    locks.close().await;
    other.close().await;
}

/// The reading of the notice is on its way before the answer to the write, so it needs no answer of its own later.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_of_a_far_holder_tells_whether_it_was_evicted() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let clock = Clock::manual();
    // The driver takes a silent server for a dead one after the timeout.
    let far = client_of(&clock, &format!("{}/g?session=60s&timeout=60s", server.url())).await;
    let near = client(&format!("{}/g?{LASTING}", server.direct_url())).await;
    let bare = bare_at(server.address()).await;
    let mut kept = far.mutex("kept").expect("a good name").lock().await.expect("it is free");
    let later = guarded(&mut kept);
    for evicted in [true, false] {
        let mut guard = far.mutex("stock").expect("a good name").lock().await.expect("it is free");
        let writer = guarded(&mut guard);
        server.silence().expect("the network can go dark");
        match evicted {
            true => {
                let how = Eviction::new(true).because("moved");
                near.evict("stock", guard.token(), &how).await.expect("it holds");
            }
            false => bare.delete(writer.path(), None).await.expect("it is there"),
        }
        let writes = [set("/value", "1")];
        let mut write = pin!(writer.commit(&writes));
        let mut poll = || write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        // The answer takes long.
        clock.advance_to(clock.now() + Duration::from_millis(50));
        assert!(poll().is_pending());
        // The server answers this one after all that is on its way.
        let (answer, mended) = tokio::join!(timeout(SOON, later.commit(&[])), async { server.mend() });
        mended.expect("the network can be mended");
        answer.expect("it is answered").expect("it holds");
        let Poll::Ready(answer) = poll() else { panic!("the notice is read after the answer to the write") };
        let loss = if evicted { Loss::Evicted } else { Loss::Deleted };
        assert_eq!(answer.expect_err("its node is gone").loss(), Some(loss));
        assert_eq!(guard.ensure_held().expect_err("it was told").loss(), Some(loss));
        assert_eq!(guard.loss_detail().is_some_and(|detail| detail.contains("moved")), evicted);
    }
    kept.release().await.expect("it was held");
    far.close().await;
    near.close().await;
}

/// The holder's clock stands still, so that each answer is a fast one.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_a_fast_answer_is_one_request() {
    needs!(ZOOKEEPER);
    let server = ZooKeeper::start(&Config::new()).expect("a server starts");
    let locks = client_of(&Clock::manual(), &format!("{}/g?{LASTING}", server.url())).await;
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
    let near = client(&format!("{}/g?{LASTING}", server.direct_url())).await;
    let mut stale = far.mutex("stock").expect("a good name").lock().await.expect("it is free");
    let writer = guarded(&mut stale);
    let bare = bare_at(server.address()).await;
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
