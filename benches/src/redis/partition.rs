//! Holders whose network goes dark: each has called itself lost when the server gives its lock away.

use crate::client::{connect, runtime};
use crate::figure::Measured;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::redis::Redis;
use fencepost_testkit::server::Proxy;
use std::time::Duration;

const ROUNDS: usize = 4;
/// Locks in a round; their holder loses its network with all of them at once.
const LOCKS: usize = 250;
const LEASE: Duration = Duration::from_secs(2);

/// Counts holders that believed in their lock when the next was granted.
pub(crate) fn holders() -> Measured {
    let server: Redis = super::server::start();
    let mut proxy = Proxy::start(server.address()).expect("a proxy");
    let runtime = runtime();
    let (mut granted, mut violations) = (0, 0);
    for round in 0..ROUNDS {
        runtime.block_on(async {
            let far = connect(&server.url_at(proxy.address())).await;
            let near = connect(&server.url()).await;
            let mut held = Vec::new();
            for number in 0..LOCKS {
                let lock = far.mutex(&format!("{round}/{number}")).expect("a good name");
                held.push(lock.lock().ttl(LEASE).await.expect("nobody else wants it"));
            }
            let next: Vec<_> = held
                .into_iter()
                .map(|guard| {
                    let lock = near.mutex(guard.name().as_str()).expect("a good name");
                    tokio::spawn(async move {
                        let next = lock.lock().wait(Duration::from_secs(30)).await;
                        // First of all: what does the old holder believe now?
                        let believes = guard.ensure_held().is_ok();
                        let next = next.expect("the server gives it away");
                        let grows = next.token() > guard.token();
                        next.release().await.expect("it is held");
                        believes || !grows
                    })
                })
                .collect();
            // Renewals go on for a while, so that the network goes dark at any point between two of them.
            tokio::time::sleep(LEASE / 3 * 2 + Duration::from_millis(97 * round as u64)).await;
            if round % 2 == 0 { proxy.silence() } else { proxy.cut() }.expect("the proxy can do that");
            for task in next {
                granted += 1;
                violations += usize::from(task.await.expect("a task that does not panic"));
            }
            proxy.mend().expect("the proxy can do that");
            near.close().await;
            far.close().await;
        });
    }
    let note = format!(
        "{granted} holders with a lease of {} s cut off, half of them by silence; each asked when the next was granted",
        LEASE.as_secs()
    );
    Measured { figure: violations as f64, note }
}
