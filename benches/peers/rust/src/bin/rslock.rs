//! rslock on the measuring line.

use peers::{LEASE, PATIENCE, Peer};
use rslock::{Lock, LockManager};

#[derive(Clone)]
struct Rslock(LockManager);

impl Peer for Rslock {
    type Held = Lock;

    async fn connect(urls: &[String]) -> Rslock {
        let mut manager = LockManager::new(urls.to_vec());
        // Its own delay, up to 200 ms, and as many tries as anybody waits.
        manager.set_retry((PATIENCE.as_millis() / 100) as u32, std::time::Duration::from_millis(200));
        Rslock(manager)
    }

    async fn lock(&self, name: &str) -> Option<Lock> {
        self.0.lock(name, LEASE).await.ok()
    }

    async fn release(&self, held: Lock) {
        self.0.unlock(&held).await;
    }
}

fn main() {
    peers::main::<Rslock>();
}
