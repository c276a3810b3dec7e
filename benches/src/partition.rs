//! Holders whose network goes dark, and what each of them believes when the server gives its lock away.

use crate::client::{connect, runtime};
use crate::figure::Measured;
use fencepost_testkit::faults::Faults;
use fencepost_testkit::server::{Proxy, Standalone};
use std::time::{Duration, Instant};

const ROUNDS: usize = 4;
/// Locks in a round; their holder loses its network with all of them at once.
const LOCKS: usize = 250;

/// How the network goes dark.
#[derive(Clone, Copy, PartialEq)]
enum Dark {
    /// It swallows what is sent.
    Silent,
    /// It closes all connections at both ends.
    Closed,
}

/// What the old holder of a lock knew when the next one was granted.
struct Told {
    /// How long it believed in its lock after that. `None`: it had called itself lost before.
    late: Option<Duration>,
    grows: bool,
}

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

    /// Counts holders that believed in their lock when the next was granted. The network is silent in half of the rounds.
    pub(crate) fn holders(mut self) -> Measured {
        let told = self.rounds(&[Dark::Silent, Dark::Closed]);
        let note = format!(
            "{} holders {} cut off, half of them by silence; each asked when the next was granted",
            told.len(),
            self.held
        );
        believed(&told, note)
    }

    /// Counts holders that believed in their lock when the next was granted, in a network that is silent.
    pub(crate) fn silent(mut self) -> Measured {
        let told = self.rounds(&[Dark::Silent]);
        let note = format!(
            "{} holders {} cut off by silence; each asked when the next was granted",
            told.len(),
            self.held
        );
        believed(&told, note)
    }

    /// The longest time, in ms, that a holder believed in its lock after the next was granted. The network closes all connections at
    /// both ends, so server and holder hear of it at the same time.
    pub(crate) fn closed(mut self) -> Measured {
        let told = self.rounds(&[Dark::Closed]);
        let late: Vec<_> = told.iter().filter_map(|told| told.late).collect();
        let note = format!(
            "{} holders {}, all connections closed at both ends: {} still believed when the next was granted",
            told.len(),
            self.held,
            late.len()
        );
        let grows = told.iter().all(|told| told.grows);
        let longest = late.into_iter().max().unwrap_or_default();
        Measured { figure: if grows { longest.as_secs_f64() * 1e3 } else { f64::NAN }, note }
    }

    fn rounds(&mut self, dark: &[Dark]) -> Vec<Told> {
        let runtime = runtime();
        let mut told = Vec::new();
        for (round, dark) in (0..ROUNDS).zip(dark.iter().cycle()) {
            told.append(&mut runtime.block_on(self.round(round, *dark)));
        }
        told
    }

    /// Lets holders lose their network, and returns what each of them knew.
    async fn round(&mut self, round: usize, dark: Dark) -> Vec<Told> {
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
                    let granted = Instant::now();
                    // First of all: what does the old holder believe now?
                    let late = match guard.ensure_held() {
                        Ok(()) => {
                            guard.lost().await;
                            Some(granted.elapsed())
                        }
                        Err(_) => None,
                    };
                    let next = next.expect("the server gives it away");
                    let grows = next.token() > guard.token();
                    next.release().await.expect("it is held");
                    Told { late, grows }
                })
            })
            .collect();
        tokio::time::sleep(self.well + Duration::from_millis(97 * round as u64)).await;
        match dark {
            Dark::Silent => self.proxy.silence(),
            Dark::Closed => self.proxy.cut(),
        }
        .expect("the proxy can do that");
        let mut told = Vec::new();
        for task in next {
            told.push(task.await.expect("a task that does not panic"));
        }
        self.proxy.mend().expect("the proxy can do that");
        near.close().await;
        far.close().await;
        told
    }
}

fn believed(told: &[Told], note: String) -> Measured {
    let believed = told.iter().filter(|told| told.late.is_some() || !told.grows).count();
    Measured { figure: believed as f64, note }
}
