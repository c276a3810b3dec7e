//! Leases: what our keys live and die with.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::{Moment, Runtime, margin};
use tokio::sync::watch;

use crate::error::Failure;
use crate::net::{GRANT, Net, REVOKE};
use crate::proto::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse,
};

/// The shortest that etcd gives, at its default settings.
pub(crate) const SHORTEST: Duration = Duration::from_secs(2);

/// One lease. Its deadline is counted from the send of the request that made or renewed it.
pub(crate) struct Lease {
    pub(crate) id: i64,
    pub(crate) ttl: Duration,
    /// One claim's own; it is renewed only when its user asks for it.
    pub(crate) private: bool,
    term: Mutex<Term>,
    renewing: Flight<()>,
}

struct Term {
    /// When the last request that was confirmed was sent.
    sent: Moment,
    over: bool,
}

/// Whole seconds that are not shorter.
pub(crate) fn whole(ttl: Duration) -> Duration {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    Duration::from_secs(seconds).max(SHORTEST)
}

impl Lease {
    fn new(id: i64, ttl: Duration, private: bool, sent: Moment) -> Lease {
        let term = Mutex::new(Term { sent, over: false });
        Lease { id, ttl, private, term, renewing: Flight::default() }
    }

    /// Until when it is certainly there; zero if it is over.
    pub(crate) fn until(&self) -> Moment {
        let term = self.term();
        if term.over { Moment::ZERO } else { term.sent + self.ttl.saturating_sub(margin(self.ttl)) }
    }

    /// When the last request that was confirmed was sent.
    pub(crate) fn sent(&self) -> Moment {
        self.term().sent
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now >= self.until()
    }

    /// By our clock it would still be there, had nobody ended it.
    pub(crate) fn has_time(&self, now: Moment) -> bool {
        now < self.sent() + self.ttl.saturating_sub(margin(self.ttl))
    }

    /// It is certainly gone, or will not be trusted any more.
    pub(crate) fn end(&self) {
        self.term().over = true;
    }

    /// Renews it, once for all that ask meanwhile, and on the client's own thread: who asks may be dropped.
    pub(crate) async fn renew(self: &Arc<Lease>, net: &Arc<Net>, runtime: &Runtime) -> Result<(), Failure> {
        let (lease, net, own) = (Arc::clone(self), Arc::clone(net), runtime.clone());
        let renewal = async move {
            let clock = own.clock();
            let sent = clock.now();
            // What is answered later is of no use, or almost.
            let until = sent + lease.until().since(sent) * 3 / 4;
            let LeaseKeepAliveResponse { ttl, .. } = net.keep_alive(lease.id, until).await?;
            // What had run out by our clock stays so, whatever the server says.
            if ttl <= 0 || lease.is_over(clock.now()) {
                lease.end();
                return Err(Failure::lease_gone());
            }
            let mut term = lease.term();
            term.sent = term.sent.max(sent);
            Ok(())
        };
        self.renewing.join(runtime, renewal).await
    }

    fn term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a lease. If its answer is lost it ends by itself.
pub(crate) async fn grant(
    net: &Net,
    runtime: &Runtime,
    ttl: Duration,
    private: bool,
) -> Result<Lease, Failure> {
    let ttl = whole(ttl);
    // The id is ours, so that to ask twice makes one lease.
    let random = getrandom::u64().map_err(|error| {
        Failure::new(fencepost_core::ErrorKind::Internal, "the system has no randomness").because(error)
    })?;
    let id = i64::try_from(random >> 1).unwrap_or(1).max(1);
    let sent = runtime.clock().now();
    let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    let answer: Result<LeaseGrantResponse, _> =
        net.call(GRANT, LeaseGrantRequest { ttl: seconds, id }, None).await;
    match answer {
        Ok(answer) if answer.ttl >= seconds => Ok(Lease::new(id, ttl, private, sent)),
        Ok(_) => Err(Failure::nonsense()),
        Err(failure) if failure.is_lease_there() => Ok(Lease::new(id, ttl, private, sent)),
        Err(failure) => Err(failure),
    }
}

/// Ends a lease, and with it what hangs on it.
pub(crate) async fn revoke(net: &Net, id: i64) -> Result<(), Failure> {
    let answer: Result<LeaseRevokeResponse, _> = net.call(REVOKE, LeaseRevokeRequest { id }, None).await;
    match answer {
        Err(failure) if !failure.is_lease_gone() => Err(failure),
        _ => Ok(()),
    }
}

/// The leases that claims share: one for each length.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<Duration, Arc<Slot>>>);

#[derive(Default)]
struct Slot {
    lease: Mutex<Option<Arc<Lease>>>,
    making: Flight<Arc<Lease>>,
}

impl Leases {
    /// One of at least this length with most of it left: the one that is there, renewed if need be, or a new one.
    pub(crate) async fn get(
        &self,
        net: &Arc<Net>,
        runtime: &Runtime,
        ttl: Duration,
    ) -> Result<Arc<Lease>, Failure> {
        let ttl = whole(ttl);
        let slot = Arc::clone(self.slots().entry(ttl).or_default());
        if let Some(lease) = slot.current() {
            let left = lease.until().since(runtime.clock().now());
            if left >= ttl / 2 {
                return Ok(lease);
            }
            if left > Duration::ZERO {
                match lease.renew(net, runtime).await {
                    Ok(()) => return Ok(lease),
                    Err(failure) if failure.is_lease_gone() => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        let (own, net, task) = (Arc::clone(&slot), Arc::clone(net), runtime.clone());
        let making = async move {
            // Somebody else may have made it meanwhile.
            if let Some(lease) = own.current().filter(|lease| !lease.is_over(task.clock().now())) {
                return Ok(lease);
            }
            let lease = Arc::new(grant(&net, &task, ttl, false).await?);
            *own.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&lease));
            Ok(lease)
        };
        slot.making.join(runtime, making).await
    }

    /// Is this one of them?
    pub(crate) fn has(&self, id: i64) -> bool {
        self.slots().values().filter_map(|slot| slot.current()).any(|lease| lease.id == id)
    }

    /// All that there are.
    pub(crate) fn take(&self) -> Vec<Arc<Lease>> {
        let slots = std::mem::take(&mut *self.slots());
        slots.into_values().filter_map(|slot| slot.current()).collect()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn current(&self) -> Option<Arc<Lease>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Work that is under way for all who ask for it meanwhile. It runs on the client's own thread: those who ask are futures of
/// users, who may stop polling them at any time.
pub(crate) struct Flight<T>(Arc<Mutex<Option<Coming<T>>>>);

type Coming<T> = watch::Receiver<Option<Result<T, Failure>>>;

impl<T> Default for Flight<T> {
    fn default() -> Flight<T> {
        Flight(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Flight<T> {
    pub(crate) async fn join(
        &self,
        runtime: &Runtime,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let mut coming = {
            let mut flight = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*flight {
                Some(coming) => coming.clone(),
                None => {
                    let (sender, coming) = watch::channel(None);
                    *flight = Some(coming.clone());
                    let place = Arc::clone(&self.0);
                    runtime.spawn(async move {
                        let result = work.await;
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        let _ = sender.send(Some(result));
                    });
                    coming
                }
            }
        };
        let landed = coming.wait_for(Option::is_some).await.map(|result| result.clone());
        landed.ok().flatten().unwrap_or_else(|| Err(Failure::closed()))
    }
}

/// The shortest lease that the cluster gives, in seconds. It is ended again.
pub(crate) async fn probe(net: &Net) -> Result<u64, Failure> {
    let question = LeaseGrantRequest { ttl: 1, id: 0 };
    let answer: LeaseGrantResponse = net.call(GRANT, question, None).await?;
    revoke(net, answer.id).await?;
    Ok(answer.ttl.unsigned_abs())
}
