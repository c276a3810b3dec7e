//! distributed-lock on the measuring line.

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use peers::{PATIENCE, Peer};
use std::sync::Arc;

#[derive(Clone)]
struct Distributed(Arc<RedisLockProvider>);

impl Peer for Distributed {
    type Held = RedisLockHandle;

    async fn connect(urls: &[String]) -> Distributed {
        let provider = RedisLockProvider::builder().urls(urls).build().await;
        Distributed(Arc::new(provider.expect("servers that answer")))
    }

    async fn lock(&self, name: &str) -> Option<RedisLockHandle> {
        self.0.create_lock(name).acquire(Some(PATIENCE)).await.ok()
    }

    async fn release(&self, held: RedisLockHandle) {
        // Its lease ends what this cannot.
        let _ = held.release().await;
    }
}

fn main() {
    peers::main::<Distributed>();
}
