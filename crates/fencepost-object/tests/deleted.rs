//! Somebody deletes the object of a lock, which the page forbids.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencepost_core::{Backend, BackendUrl, Client, Registry, Reply, Result, Runtime};
use fencepost_object::testing::MemoryStore;
use fencepost_testkit::wait::eventually;

const SOON: Duration = Duration::from_secs(20);
/// How often a test begins anew on a machine that is too slow to show anything.
const TRIES: u32 = 5;

/// A registry takes plain functions only.
fn store() -> &'static MemoryStore {
    static STORE: OnceLock<MemoryStore> = OnceLock::new();
    STORE.get_or_init(MemoryStore::default)
}

fn open(_: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    Reply::coming(store().open(runtime))
}

async fn connect(ttl: Duration) -> Client {
    let registry = Registry::new().with("deleted", open);
    Client::builder().ttl(ttl).connect(&registry, "deleted:").await.expect("it opens")
}

/// The new object begins with the same token and the same count of writes. A waiter that has watched the former holder must not take its
/// lease for the new one's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_after_a_deletion_has_its_whole_lease() {
    for number in 0..TRIES {
        if hold_after_a_deletion(&format!("lock{number}")).await {
            return;
        }
    }
    panic!("the waiter was granted the lock before its deletion in each of {TRIES} tries");
}

/// Returns whether the next holder came in time. On a busy machine the waiter may be granted the lock before.
async fn hold_after_a_deletion(lock: &str) -> bool {
    let (brief, long) = (Duration::from_secs(2), Duration::from_secs(600));
    // Nobody renews it.
    let former = connect(brief).await;
    former.mutex(lock).unwrap().lock().await.unwrap().detach().await.unwrap();
    let waiter = connect(brief).await;
    let mutex = waiter.mutex(lock).unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().wait(2 * brief).await });
    eventually(SOON, "it waits", || async {
        waiting.is_finished() || waiter.inspect(lock).await.unwrap().waiters().count() == 1
    })
    .await;
    // The detached lease was written twice, and so is that of the next holder.
    let next = connect(long).await;
    store().delete(&format!("locks/{lock}")).await.unwrap();
    let Some(guard) = next.mutex(lock).unwrap().try_lock().await.expect("the store answers") else {
        return false;
    };
    let lease = guard.detach().await.unwrap();
    let answer = waiting.await.expect("no panic");
    assert!(answer.as_ref().is_err_and(fencepost_core::Error::is_timeout), "two hold it: {answer:?}");
    next.release(&lease).await.expect("it was held all the time");
    for client in [former, waiter, next] {
        client.close().await;
    }
    true
}
