//! redlock on the measuring line. It is a blocking library that connects again for every command.

use peers::{LEASE, PATIENCE, Peer};
use redlock::{Lock, RedLock};
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
struct Redlock {
    manager: &'static RedLock,
    /// Alone on its thread, it needs no other one.
    alone: bool,
}

impl Peer for Redlock {
    type Held = Lock<'static>;

    async fn connect(urls: &[String]) -> Redlock {
        let mut manager = RedLock::new(urls.to_vec());
        // Its own delay, up to 200 ms, and as many tries as anybody waits.
        manager.set_retry((PATIENCE.as_millis() / 100) as u32, 200);
        let alone = std::env::args().nth(1).is_some_and(|word| word == "cycle");
        Redlock { manager: Box::leak(Box::new(manager)), alone }
    }

    async fn lock(&self, name: &str) -> Option<Lock<'static>> {
        let (manager, name) = (self.manager, name.to_owned());
        let take = move || {
            let start = Instant::now();
            loop {
                match manager.lock(name.as_bytes(), LEASE.as_millis() as usize) {
                    Ok(held) => return held,
                    // More connections than the system has room for: a moment later it has.
                    Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
                    Err(_) => return None,
                }
            }
        };
        if self.alone { take() } else { tokio::task::spawn_blocking(take).await.ok().flatten() }
    }

    async fn release(&self, held: Lock<'static>) {
        let manager = self.manager;
        let give = move || manager.unlock(&held);
        if self.alone { give() } else { tokio::task::spawn_blocking(give).await.unwrap_or_default() }
    }
}

fn main() {
    peers::main::<Redlock>();
}
