//! Writes that require that the lock is held.

use fencepost_testkit::needs;
use std::time::{Duration, Instant};

use crate::kit::{SOON, connect, eventually, server};
use fencepost_core::{Effect, Eviction, Guard, Loss};
use fencepost_etcd::{Held, Write};
use fencepost_testkit::etcd::{Config, Proxied};
use fencepost_testkit::faults::Faults;

fn held(guard: &mut Guard) -> Held {
    guard.native().unwrap().downcast_ref::<Held>().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_holder_is_refused_by_the_store() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut first = locks.mutex("stock").unwrap().lock().await.unwrap();
    let stale = held(&mut first);
    assert_eq!(stale.create_revision(), first.token().get() as i64);
    let revision = stale.put("count", "9").await.unwrap();
    assert!(revision > stale.create_revision());
    locks.evict("stock", first.token(), &Eviction::new(true)).await.unwrap();
    let mut second = locks.mutex("stock").unwrap().lock().await.unwrap();
    let writes = [
        Write::Put { key: b"count".into(), value: b"8".into() },
        Write::Put { key: b"by".into(), value: b"second".into() },
    ];
    held(&mut second).write(writes).await.unwrap();
    let error = stale.put("count", "7").await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let error = stale.write([Write::Delete { key: b"count".into() }]).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(etcd.look().run(&["get", "count", "--print-value-only"]).trim(), "8");
    second.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_tells_the_guard() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let held = held(&mut guard);
    etcd.look().run(&["del", std::str::from_utf8(held.key()).unwrap()]);
    assert!(held.put("count", "1").await.unwrap_err().is_lost());
    assert_eq!(guard.ensure_held().unwrap_err().loss(), Some(Loss::Deleted));
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_compare_is_good_for_any_client() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let held = held(&mut guard);
    let key = String::from_utf8(held.key().to_vec()).unwrap();
    let created = etcd.look().run(&["get", &key, "-w", "fields"]);
    assert!(created.contains(&format!("\"CreateRevision\" : {}", held.create_revision())), "{created}");
    guard.release().await.unwrap();
    assert!(held.put("count", "1").await.unwrap_err().is_lost());
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_used_again_and_evictions_of_its_earlier_claim_are_ignored() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let locks = connect(&etcd.url()).await;
    let mut first = locks.mutex("stock").unwrap().lock().await.unwrap();
    let before = held(&mut first);
    first.release().await.unwrap();
    let mut second = locks.mutex("stock").unwrap().lock().await.unwrap();
    let now = held(&mut second);
    assert_eq!(before.key(), now.key(), "so that no dead keys pile up");
    assert!(now.create_revision() > before.create_revision());
    assert!(before.put("count", "1").await.unwrap_err().is_lost());
    // Two notes of evictions arrive one after the other: one for an earlier claim with the same key, one for another lock.
    let name = now.key().rsplit(|byte| *byte == b'/').next().unwrap();
    let mark = format!("%fencepost/evicted/{}-{:x}", String::from_utf8_lossy(name), before.create_revision());
    now.put(mark, "").await.unwrap();
    let other = locks.mutex("other").unwrap().lock().await.unwrap();
    locks.evict("other", other.token(), &Eviction::default()).await.unwrap();
    assert_eq!(tokio::time::timeout(SOON, other.lost()).await.unwrap(), Loss::Evicted);
    second.ensure_held().expect("nobody has evicted this one");
    locks.evict("stock", second.token(), &Eviction::default()).await.unwrap();
    assert_eq!(tokio::time::timeout(SOON, second.lost()).await.unwrap(), Loss::Evicted);
    eventually("no mark is left", || async { etcd.look().keys("%fencepost/").is_empty() }).await;
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_is_not_written_again() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    // Two addresses of one server stand for two members.
    let locks = connect(&format!("{},{}?timeout=20s", etcd.url(), etcd.address())).await;
    let mut guard = locks.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
    let held = held(&mut guard);
    let (start, mut number) = (Instant::now(), 0);
    let count = loop {
        number += 1;
        let key = format!("count/{number}");
        etcd.delay(Duration::from_millis(1_500)).unwrap();
        let (writer, written) = (held.clone(), key.clone());
        let put = tokio::spawn(async move { writer.put(written, "9").await });
        eventually("it is written", async || etcd.look().keys(&key).len() == 1).await;
        etcd.cut().unwrap();
        if let Err(error) = put.await.unwrap() {
            assert!(error.is_unreachable() && error.effect() == Effect::Unknown, "{error}");
            break key;
        }
        // On a busy machine the reply may come before the cut.
        assert!(start.elapsed() < SOON, "it is written, although the reply is lost");
        etcd.mend().unwrap();
    };
    let count = etcd.look().run(&["get", &count, "-w", "fields"]);
    assert!(count.contains("\"Version\" : 1"), "{count}");
    guard.release().await.unwrap();
    locks.close().await;
}
