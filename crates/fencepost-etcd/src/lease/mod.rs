//! Leases: all keys of a claim end with its lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{ErrorKind, Moment, Runtime, SingleFlight, margin};

use crate::error::Failed;
use crate::rpc::cluster::Cluster;
use crate::rpc::proto::{LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, Origin};

/// The shortest lease that etcd grants with its default settings.
pub(crate) const SHORTEST: Duration = Duration::from_secs(2);

/// One lease. Its deadline counts from the sending of the request that made or renewed it.
pub(crate) struct Lease {
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    /// It belongs to one claim. If that has a fixed lease, it is renewed only when the claim's user extends it.
    pub(crate) dedicated: bool,
    term: Mutex<Term>,
    renewal: SingleFlight<Result<(), Failed>>,
}

struct Term {
    /// When the last request that was confirmed was sent.
    sent: Moment,
    ended: bool,
}

impl Lease {
    pub(crate) fn new(id: i64, ttl: Duration, dedicated: bool, sent: Moment) -> Lease {
        let term = Mutex::new(Term { sent, ended: false });
        Lease { id, ttl, dedicated, term, renewal: SingleFlight::default() }
    }

    /// Returns until when the lease is certain to exist; zero if it has ended.
    pub(crate) fn until(&self) -> Moment {
        let term = self.term.lock();
        if term.ended { Moment::ZERO } else { term.sent + self.ttl.saturating_sub(margin(self.ttl)) }
    }

    /// Returns when the last request that was confirmed was sent.
    pub(crate) fn sent(&self) -> Moment {
        self.term.lock().sent
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now >= self.until()
    }

    /// Returns whether the lease would still exist if nobody had revoked it.
    pub(crate) fn has_time(&self, now: Moment) -> bool {
        now < self.sent() + self.ttl.saturating_sub(margin(self.ttl))
    }

    /// Ends the lease for this client.
    pub(crate) fn end(&self) {
        self.term.lock().ended = true;
    }
}

/// Rounds up to whole seconds that etcd grants.
fn whole_seconds(ttl: Duration) -> Duration {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    Duration::from_secs(seconds).max(SHORTEST)
}

/// The leases of a client. Claims with the same ttl share one.
#[derive(Clone)]
pub(crate) struct Leases {
    cluster: Arc<Cluster>,
    runtime: Runtime,
    shared: Arc<Mutex<HashMap<Duration, Arc<SharedLease>>>>,
    /// Shared leases that no later claim gets.
    retired: Arc<Mutex<Vec<Arc<Lease>>>>,
}

#[derive(Default)]
struct SharedLease {
    lease: Mutex<Option<Arc<Lease>>>,
    creation: SingleFlight<Result<Arc<Lease>, Failed>>,
}

impl SharedLease {
    fn current(&self) -> Option<Arc<Lease>> {
        self.lease.lock().clone()
    }
}

impl Leases {
    pub(crate) fn new(cluster: Arc<Cluster>, runtime: Runtime) -> Leases {
        Leases { cluster, runtime, shared: Arc::default(), retired: Arc::default() }
    }

    fn now(&self) -> Moment {
        self.runtime.clock().now()
    }

    /// Returns a shared lease of at least `ttl` with at least half of it left. Renews the one that exists, or creates one.
    pub(crate) async fn shared(&self, ttl: Duration) -> Result<Arc<Lease>, Failed> {
        let ttl = whole_seconds(ttl);
        let shared = Arc::clone(self.shared.lock().entry(ttl).or_default());
        if let Some(lease) = shared.current() {
            let left = lease.until().since(self.now());
            if left >= ttl / 2 {
                return Ok(lease);
            }
            if left > Duration::ZERO {
                match self.renew(&lease, ttl).await {
                    Ok(()) => return Ok(lease),
                    Err(failure) if failure.is_lease_not_found() => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        let (leases, own) = (self.clone(), Arc::clone(&shared));
        let creation = async move {
            // Another claim may have created it meanwhile.
            if let Some(lease) = own.current().filter(|lease| !lease.is_over(leases.now())) {
                return Ok(lease);
            }
            let lease = leases.create(ttl, false).await?;
            *own.lease.lock() = Some(Arc::clone(&lease));
            Ok(lease)
        };
        shared.creation.join(&self.runtime, creation).await.unwrap_or_else(|| Err(Failed::closed()))
    }

    /// As [`shared`](Leases::shared), and the lease lasts for `ttl` from now at least.
    pub(crate) async fn shared_from_now(&self, ttl: Duration) -> Result<Arc<Lease>, Failed> {
        let now = self.now();
        loop {
            let lease = self.shared(ttl).await?;
            if lease.sent() >= now {
                return Ok(lease);
            }
            // The renewal may be one that was under way already. If the lease is gone, there will be another one.
            match self.renew(&lease, ttl).await {
                Err(failure) if !failure.is_lease_not_found() => return Err(failure),
                _ => {}
            }
        }
    }

    /// Creates a lease for one claim.
    pub(crate) async fn dedicated(&self, ttl: Duration) -> Result<Arc<Lease>, Failed> {
        self.create(ttl, true).await
    }

    /// Creates a lease. If the reply is lost, the lease expires.
    async fn create(&self, ttl: Duration, dedicated: bool) -> Result<Arc<Lease>, Failed> {
        let ttl = whole_seconds(ttl);
        // The client chooses the id, so that a repeated request creates one lease.
        let random = getrandom::u64().map_err(|error| {
            Failed::new(ErrorKind::Internal, "the system's random numbers are not available").because(error)
        })?;
        let id = i64::try_from(random >> 1).unwrap_or(1).max(1);
        let sent = self.now();
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        match self.cluster.call(LeaseGrantRequest { ttl: seconds, id }, None).await {
            Ok(reply) if reply.ttl < seconds => Err(Failed::malformed()),
            Err(failure) if !failure.is_lease_exists() => Err(failure),
            _ => Ok(Arc::new(Lease::new(id, ttl, dedicated, sent))),
        }
    }

    /// Renews a lease, once for all concurrent callers. The shortest of the claims for which it is renewed lasts for `ttl` from a renewal.
    pub(crate) async fn renew(&self, lease: &Arc<Lease>, ttl: Duration) -> Result<(), Failed> {
        let (leases, own) = (self.clone(), Arc::clone(lease));
        let renewal = async move {
            let sent = leases.now();
            // By the client's clock it may have ended already, whatever the server would say.
            if own.is_over(sent) {
                own.end();
                return Err(Failed::lease_not_found());
            }
            // A reply in the last quarter leaves too little time. A claim is renewed when a third of its time has passed.
            let until = sent + own.until().since(sent).min(ttl * 2 / 3) * 3 / 4;
            let reply = leases.cluster.keep_alive(own.id, until).await;
            if reply.as_ref().is_err_and(Failed::is_lease_not_found) {
                own.end();
            }
            let reply = reply?;
            // A lease that ended by the client's clock stays ended, whatever the server says.
            if reply.ttl <= 0 || own.is_over(leases.now()) {
                own.end();
                return Err(Failed::lease_not_found());
            }
            let mut term = own.term.lock();
            term.sent = term.sent.max(sent);
            Ok(())
        };
        lease.renewal.join(&self.runtime, renewal).await.unwrap_or_else(|| Err(Failed::closed()))
    }

    /// Returns how long a lease lasts, in seconds; negative: it does not exist.
    pub(crate) async fn time_to_live(&self, id: i64) -> Result<i64, Failed> {
        Ok(self.cluster.call(LeaseTimeToLiveRequest { id }, None).await?.ttl)
    }

    /// Returns how long a lease lasts at least, zero if it does not exist, and the origin of the reply. The member that was asked notes the term
    /// after it has asked the leader, which may be deposed by then.
    pub(crate) async fn time_left(&self, id: i64) -> Result<(Duration, Origin), Failed> {
        let reply = self.cluster.call(LeaseTimeToLiveRequest { id }, None).await?;
        let left = Duration::from_secs(reply.ttl.try_into().unwrap_or_default());
        Ok((left, Origin::of(reply.header.as_ref())))
    }

    /// Revokes a lease and with it its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Failed> {
        match self.cluster.call(LeaseRevokeRequest { id }, None).await {
            Err(failure) if !failure.is_lease_not_found() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Revokes a lease that has no keys any more, in the background. If that fails it expires.
    pub(crate) fn revoke_unused(&self, id: i64) {
        let leases = self.clone();
        self.runtime.cleaner().finish(async move {
            if let Err(failure) = leases.revoke(id).await {
                tracing::debug!(error = failure.words(), "an unused lease was not revoked; it expires");
            }
        });
    }

    /// Returns the shortest lease that the cluster grants, in seconds.
    pub(crate) async fn shortest(&self) -> Result<u64, Failed> {
        let reply = self.cluster.call(LeaseGrantRequest { ttl: 1, id: 0 }, None).await?;
        self.revoke(reply.id).await?;
        Ok(reply.ttl.unsigned_abs())
    }

    /// Gives later claims a new shared lease. This one ends with the last claim that has it, and its tombstones end with it.
    pub(crate) fn retire(&self, id: i64) {
        let shared: Vec<_> = self.shared.lock().values().cloned().collect();
        let found = shared.iter().find_map(|shared| shared.lease.lock().take_if(|lease| lease.id == id));
        let (now, mut retired) = (self.now(), self.retired.lock());
        retired.retain(|lease| !lease.is_over(now));
        retired.extend(found);
    }

    /// Returns whether this is one of the shared leases.
    pub(crate) fn has(&self, id: i64) -> bool {
        let is_it = |lease: &Arc<Lease>| lease.id == id;
        self.retired.lock().iter().any(is_it)
            || self.shared.lock().values().filter_map(|shared| shared.current()).any(|lease| is_it(&lease))
    }

    /// Takes out all shared leases.
    pub(crate) fn take(&self) -> Vec<Arc<Lease>> {
        let all = std::mem::take(&mut *self.shared.lock());
        let mut leases = std::mem::take(&mut *self.retired.lock());
        leases.extend(all.into_values().filter_map(|shared| shared.current()));
        leases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason of a loss differs: a lease that had time was revoked, another one has expired.
    #[test]
    fn a_lease_has_time_until_its_margin_whether_it_has_ended_or_not() {
        let (sent, ttl) = (Moment::from_nanos(7), Duration::from_secs(10));
        let lease = Lease::new(1, ttl, false, sent);
        let until = sent + (ttl - margin(ttl));
        let before = until.less(Duration::from_nanos(1));
        assert_eq!(lease.until(), until);
        assert!(lease.has_time(before) && !lease.is_over(before));
        assert!(!lease.has_time(until) && lease.is_over(until));
        lease.end();
        assert!(lease.has_time(before) && lease.is_over(before));
        assert!(!lease.has_time(until));
    }
}
