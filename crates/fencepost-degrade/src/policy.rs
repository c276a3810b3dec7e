//! The policies: what a client does while its engine is away.

use std::fmt;
use std::time::Duration;

/// Says what a client does while its engine, the *primary*, is away: give it to
/// [`ClientBuilder::layer`](fencepost_core::ClientBuilder::layer). By default it [fails](Degrade::fail_closed). With another policy,
/// [`connect`](fencepost_core::ClientBuilder::connect) makes a client also while the engine is away, after
/// [`attempt_timeout`](fencepost_core::ClientBuilder::attempt_timeout).
///
/// There are neither detached leases nor upgrades then, and without a fallback no
/// [tokens](fencepost_core::Capabilities::tokens) that can be relied on. A call that does not wait may take two
/// [probe intervals](Degrade::probe_interval) longer.
///
/// A circuit breaker decides whether the primary is away: two failures in a row, the last one of a probe. Then a probe goes to the
/// primary at each half of the [probe interval](Degrade::probe_interval), and the first one that is answered ends the outage.
///
/// # What is guaranteed
/// - A call returns after the longer of its waiting time and the
///   [attempt limit](fencepost_core::ClientBuilder::attempt_timeout), also while the primary hangs.
/// - [`Guard::degraded`](fencepost_core::GuardView::degraded) says what a guard is worth.
/// - With [`fallback`](Degrade::fallback): no two hold the lock, and tokens grow, as long as the primary is down or up *for all* clients
///   and stays so for at least one probe interval. All clients need the same fallback, longest lease and probe interval.
///
/// # What is not
/// - Where one client reaches the primary and another does not, both can hold. Only tokens help then.
/// - [`local_only`](Degrade::local_only) and [`fail_open`](Degrade::fail_open) do not exclude other processes during an outage.
#[derive(Clone)]
pub struct Degrade {
    pub(super) policy: Policy,
    pub(super) max_ttl: Option<Duration>,
    pub(super) interval: Duration,
}

/// The policy, and the URL of the fallback. `Debug` shows no more of it than its scheme: it may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Policy {
    Closed,
    Fallback(String),
    Local,
    Open,
}

impl Degrade {
    /// The longest lease with a fallback, if none is set.
    pub const MAX_TTL: Duration = Duration::from_secs(30);
    /// The probe interval that is used if none is set.
    pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
    /// The shortest probe interval.
    pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

    fn new(policy: Policy) -> Degrade {
        Degrade { policy, max_ttl: None, interval: Degrade::PROBE_INTERVAL }
    }

    /// Fails while the engine is away. This is the default.
    pub fn fail_closed() -> Degrade {
        Degrade::new(Policy::Closed)
    }

    /// Locks at the engine that `url` names while the primary is away, once all leases at the primary have ended.
    ///
    /// After its start, after a failure of the primary and after its return, a client takes each lock at both engines, the fallback first,
    /// for one longest lease plus one probe interval. So it needs both engines then. The first grant of the fallback alone comes that long
    /// after the primary was found away. Both engines need [clock tokens](fencepost_core::Capabilities::clock_tokens), and clocks that agree.
    pub fn fallback(url: &str) -> Degrade {
        Degrade::new(Policy::Fallback(url.to_owned()))
    }

    /// Excludes the tasks of this client alone while the engine is away.
    ///
    /// Each claim first takes a lock in this client's memory, and then the engine's, so exclusion within the client has no gap. A grant
    /// that the client made alone stays so until it is released, also after the engine's return.
    pub fn local_only() -> Degrade {
        Degrade::new(Policy::Local)
    }

    /// Grants every claim while the engine is away. Such a guard protects nothing.
    pub fn fail_open() -> Degrade {
        Degrade::new(Policy::Open)
    }

    /// Sets the longest lease. A longer one is refused before anything is sent. A switch to a fallback waits for that time; the default is
    /// 30 s there, whatever the client's [`ttl`](fencepost_core::ClientBuilder::ttl) is. Elsewhere the engine has the limit.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Degrade {
        self.max_ttl = Some(max_ttl);
        self
    }

    /// Sets the probe interval; 1 s by default. A probe goes to the engine twice in it, and waits for its answer for half of it.
    #[must_use]
    pub fn probe_interval(mut self, interval: Duration) -> Degrade {
        self.interval = interval;
        self
    }

    /// The policy's name, as in metrics.
    pub(super) fn name(&self) -> &'static str {
        match self.policy {
            Policy::Closed => "fail_closed",
            Policy::Fallback(_) => "fallback",
            Policy::Local => "local_only",
            Policy::Open => "fail_open",
        }
    }
}

impl fmt::Debug for Degrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Degrade");
        debug.field("policy", &self.name());
        if let Policy::Fallback(url) = &self.policy {
            debug.field("fallback", &url.split_once(':').map_or("…", |(scheme, _)| scheme));
        }
        debug.field("max_ttl", &self.max_ttl).field("interval", &self.interval).finish()
    }
}
