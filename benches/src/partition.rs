//! Holders whose network goes dark: each has called itself lost when the server gives its lock away.

use crate::client::{connect, runtime};
use crate::figure::Measured;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::{Proxy, Standalone};
use std::time::Duration;

const ROUNDS: usize = 4;
/// Locks in a round; their holder loses its network with all of them at once.
const LOCKS: usize = 250;

/// A server, and holders who reach it by a proxy.
pub(crate) struct Partition {
    pub(crate) proxy: Proxy,
    /// The URL of those who are cut off.
    pub(crate) far: String,
    /// The URL of those who are not.
    pub(crate) near: String,
    /// The lease; none where the engine's session decides.
    pub(crate) ttl: Option<Duration>,
    /// How long all is well: renewals go on for a while, so that the network goes dark at any point between two of them.
    pub(crate) well: Duration,
    /// How they hold, in words.
    pub(crate) held: String,
}

impl Partition {
    /// Holders on a server that gives them the shortest leases there are.
    pub(crate) fn of_leases(server: &impl Standalone) -> Partition {
        const LEASE: Duration = Duration::from_secs(2);
        let proxy = Proxy::start(server.address()).expect("a proxy");
        Partition {
            far: server.url_at(proxy.address()),
            near: server.url_at(server.address()),
            proxy,
            ttl: Some(LEASE),
            well: LEASE / 3 * 2,
            held: format!("with a lease of {} s", LEASE.as_secs()),
        }
    }

    /// Counts holders that believed in their lock when the next was granted.
    pub(crate) fn holders(mut self) -> Measured {
        let runtime = runtime();
        let (mut granted, mut violations) = (0, 0);
        for round in 0..ROUNDS {
            let (all, bad) = runtime.block_on(self.round(round));
            granted += all;
            violations += bad;
        }
        let note = format!(
            "{granted} holders {} cut off, half of them by silence; each asked when the next was granted",
            self.held
        );
        Measured { figure: violations as f64, note }
    }

    /// How many were granted next, and how many of them while the old holder believed or with a token that does not grow.
    async fn round(&mut self, round: usize) -> (usize, usize) {
        let far = connect(&self.far).await;
        let near = connect(&self.near).await;
        let mut held = Vec::new();
        for number in 0..LOCKS {
            let lock = far.mutex(&format!("{round}-{number}")).expect("a good name");
            let wanted = match self.ttl {
                Some(ttl) => lock.lock().ttl(ttl),
                None => lock.lock(),
            };
            held.push(wanted.await.expect("nobody else wants it"));
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
        tokio::time::sleep(self.well + Duration::from_millis(97 * round as u64)).await;
        if round.is_multiple_of(2) { self.proxy.silence() } else { self.proxy.cut() }
            .expect("the proxy can do that");
        let (mut granted, mut violations) = (0, 0);
        for task in next {
            granted += 1;
            violations += usize::from(task.await.expect("a task that does not panic"));
        }
        self.proxy.mend().expect("the proxy can do that");
        near.close().await;
        far.close().await;
        (granted, violations)
    }
}
