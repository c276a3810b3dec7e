//! A server that is out of space refuses puts and still deletes.

use crate::kit::{SOON, client_of, connect, fill, renewed};
use fencepost_core::{Clock, Effect, Eviction, Guard, Loss};
use fencepost_testkit::etcd::{Config, Etcd};
use fencepost_testkit::needs;
use futures_util::future::join_all;

/// A server with little space.
pub(crate) fn small() -> Etcd {
    Etcd::start(&Config::new().argument("--quota-backend-bytes=200000")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_evicted_at_once_while_there_is_no_space() {
    needs!(ETCD, ETCDCTL);
    let etcd = small();
    let (locks, operator) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    fill(&etcd);
    let how = |now| Eviction::new(now).because("maintenance");
    let error = operator.evict("stock", guard.token(), &how(false)).await.unwrap_err();
    assert!(error.to_string().contains("out of space") && error.effect() == Effect::None, "{error}");
    assert!(error.to_string().contains("--now"), "{error}");
    operator.evict("stock", guard.token(), &how(true)).await.unwrap();
    assert!(etcd.look().keys("stock/").is_empty());
    let why = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert!(matches!(why, Loss::Deleted | Loss::Evicted), "{why}");
    locks.close().await;
    operator.close().await;
}

/// Its renewals write the key while there is space.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_lease_was_given_out_keeps_its_lock_without_space() {
    needs!(ETCD, ETCDCTL);
    let etcd = small();
    let clock = Clock::manual();
    let locks = client_of(&clock, &etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().ttl(2 * SOON).await.unwrap();
    guard.to_lease().unwrap();
    fill(&etcd);
    for _ in 0..2 {
        renewed(&clock, &guard).await;
    }
    guard.release().await.unwrap();
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_finds_no_space_has_not_taken_effect() {
    needs!(ETCD, ETCDCTL);
    let etcd = small();
    let locks = connect(&etcd.url()).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    fill(&etcd);
    for error in [
        locks.mutex("other").unwrap().try_lock().await.unwrap_err(),
        // It needs a dedicated lease.
        locks.mutex("other").unwrap().try_lock().ttl(SOON).no_renewal().await.unwrap_err(),
        locks.semaphore("permits", 3).unwrap().try_acquire().await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(error.is_configuration() && text.contains("out of space"), "{text}");
        assert!(error.effect() == Effect::None && !text.contains("taken effect"), "{text}");
    }
    assert_eq!(etcd.look().keys("other/").len() + etcd.look().keys("permits/").len(), 0);
    // A held lock can be released.
    guard.release().await.unwrap();
    assert!(etcd.look().keys("stock/").is_empty());
    locks.close().await;
}

/// A server carries out the request by which its space runs out, and refuses it all the same. Only requests that arrive at the same time meet
/// that.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_by_which_the_space_runs_out_leaves_no_key() {
    needs!(ETCD, ETCDCTL);
    let etcd = small();
    // A slow machine has time for all requests.
    let locks = connect(&format!("{}?timeout=60s", etcd.url())).await;
    // The shared lease exists before the space runs out.
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    let fill = (0..64).map(|worker| {
        let locks = &locks;
        async move {
            let mut held = Vec::new();
            for number in 0.. {
                let name = format!("try-{worker}-{number}");
                match locks.mutex(&name).unwrap().try_lock().await {
                    Ok(granted) => held.push(granted.expect("nobody else wants it")),
                    Err(error) => {
                        assert!(error.to_string().contains("out of space"), "{error}");
                        return (held, name);
                    }
                }
            }
            unreachable!("the space runs out")
        }
    });
    let filled = join_all(fill).await;
    let keys = etcd.look().keys("try-");
    for (held, refused) in filled {
        let left = keys.iter().find(|key| key.starts_with(&format!("{refused}/")));
        assert_eq!(left, None, "a refused request has left its key");
        join_all(held.into_iter().map(Guard::release)).await;
    }
    assert!(etcd.look().keys("try-").is_empty());
    guard.release().await.unwrap();
    locks.close().await;
}
