//! distributed-lock on the measuring line.

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use peers::{LEASE, PATIENCE, Peer};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone)]
struct Distributed(Arc<RedisLockProvider>);

impl Peer for Distributed {
    type Held = RedisLockHandle;

    async fn connect(urls: &[String]) -> Distributed {
        let provider = RedisLockProvider::builder().urls(urls).expiry(LEASE).build().await;
        Distributed(Arc::new(provider.expect("servers that answer")))
    }

    async fn lock(&self, name: &str) -> Option<RedisLockHandle> {
        // Its `acquire` asks once, whatever time it is given, and answers at once that this has run out. So a caller that waits
        // asks again, with the pauses that the library's own semaphore makes.
        let (lock, start, mut pause) = (self.0.create_lock(name), Instant::now(), Duration::from_millis(10));
        loop {
            if let Ok(Some(held)) = lock.try_acquire().await {
                return Some(held);
            }
            if start.elapsed() >= PATIENCE {
                return None;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    async fn release(&self, held: RedisLockHandle) {
        // Its lease ends what this cannot.
        let _ = held.release().await;
    }
}

fn main() {
    peers::main::<Distributed>();
}
