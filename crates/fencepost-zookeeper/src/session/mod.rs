//! One session with ZooKeeper: its end deletes the ephemeral nodes that were made in it.

pub(crate) mod runner;
pub(crate) mod srvr;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
pub(crate) mod tls;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{
    Claim, Clock, Error, Moment, RenewalFailure, Reply, Result, Runtime, SingleFlight, State, Validity,
    session_renewal_failed,
};
use zookeeper_client as zk;

use crate::error::{ENGINE, disconnected, failure, is_over, timed_out};

/// A request of the driver. Its first poll sends it.
pub(crate) type Request<T> = Pin<Box<dyn Future<Output = Result<T, zk::Error>> + Send>>;

/// A session.
///
/// Its validity counts from the sending of the last request that a quorum answered. A server that has lost the others still answers
/// reads and pings, so these prove nothing. A follower reports a session to its leader at the next half tick, and a session has at
/// least two ticks. So a fourth of its length is subtracted.
pub(crate) struct Session {
    /// ZooKeeper's number of the session: the owner of its ephemeral nodes.
    pub(crate) id: i64,
    /// The session timeout that the server granted.
    pub(crate) length: Duration,
    pub(crate) validity: Arc<Validity>,
    timeout: Duration,
    driver: Mutex<Option<Arc<zk::Client>>>,
    tls: Option<Arc<tls::Tls>>,
    runtime: Runtime,
    /// The time at which the last request was sent that a quorum answered.
    confirmed: AtomicU64,
    /// When the request was sent, and how it ended. Without an error there was no answer in time.
    probes: SingleFlight<(Moment, Result<(), Option<zk::Error>>)>,
}

impl Session {
    /// Wraps a session of the driver that a quorum confirmed by the answer to a request of `sent`.
    pub(crate) fn new(
        driver: zk::Client,
        tls: Option<Arc<tls::Tls>>,
        runtime: &Runtime,
        sent: Moment,
        timeout: Duration,
    ) -> Arc<Session> {
        let session = Session {
            id: driver.session_id().0,
            length: driver.session_timeout(),
            validity: Arc::new(Validity::new()),
            timeout,
            driver: Mutex::new(Some(Arc::new(driver))),
            tls,
            runtime: runtime.clone(),
            confirmed: AtomicU64::new(0),
            probes: SingleFlight::default(),
        };
        session.confirm(sent);
        Arc::new(session)
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.runtime.clock()
    }

    /// Extends the validity: a quorum answered a request that was sent at `sent`.
    pub(crate) fn confirm(&self, sent: Moment) {
        if self.validity.confirm(self.clock(), sent, self.length * 3 / 4) {
            self.confirmed.fetch_max(sent.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns whether the session has ended, or may have.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.validity.state(self.clock().now()), State::Lost(_))
    }

    /// Returns the driver's client, while the session is valid.
    pub(crate) fn driver(&self) -> Result<Arc<zk::Client>, zk::Error> {
        if self.is_over() {
            return Err(zk::Error::SessionExpired);
        }
        self.driver.lock().clone().ok_or(zk::Error::SessionExpired)
    }

    /// Ends the session for good. The driver closes it at the server as well: its nodes must not stay because the connection is
    /// made again.
    pub(crate) fn end(&self) {
        self.validity.end(self.runtime.session_loss());
        drop(self.driver.lock().take());
    }

    /// Makes a request with the driver's client.
    pub(crate) fn request<T, F>(
        &self,
        request: impl FnOnce(Arc<zk::Client>) -> F + Send + 'static,
    ) -> Request<T>
    where
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
        T: Send + 'static,
    {
        match self.driver() {
            Ok(driver) => Box::pin(request(driver)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    pub(crate) fn list(&self, path: String) -> Request<Vec<String>> {
        self.request(move |driver| async move { driver.list_children(&path).await })
    }

    pub(crate) fn data(&self, path: String) -> Request<(Vec<u8>, zk::Stat)> {
        self.request(move |driver| async move { driver.get_data(&path).await })
    }

    pub(crate) fn stat(&self, path: String) -> Request<Option<zk::Stat>> {
        self.request(move |driver| async move { driver.check_stat(&path).await })
    }

    pub(crate) fn delete(&self, path: String) -> Request<()> {
        self.request(move |driver| async move { driver.delete(&path, None).await })
    }

    pub(crate) fn sync(&self) -> Request<()> {
        self.request(move |driver| async move { driver.sync("/").await })
    }

    /// Waits for an answer at most as long as one request may take.
    ///
    /// # Errors
    /// No answer came in time.
    pub(crate) async fn within<F: Future>(&self, work: F) -> Result<F::Output> {
        let until = self.clock().now() + self.timeout;
        let mut work = pin!(work);
        // This thread writes the requests to the socket, all at once.
        let work = poll_fn(|cx| runner::run_inline(|| work.as_mut().poll(cx)));
        self.clock().within(until, work).await.ok_or_else(timed_out)
    }

    /// Waits for the answer to a request; each failure is an error for the caller.
    pub(crate) async fn answer<T>(&self, request: Request<T>) -> Result<T> {
        self.within(request).await?.map_err(|error| failure(&error))
    }

    /// Sleeps for `pause`, or until the session ends.
    pub(crate) async fn sleep(&self, pause: Duration) {
        self.sleep_until(self.clock().now() + pause).await;
    }

    /// Sleeps until that time, or until the session ends.
    pub(crate) async fn sleep_until(&self, until: Moment) {
        let mut watch = self.validity.watch(self.clock());
        let mut sleep = self.clock().sleep_until(until);
        poll_fn(|cx| {
            watch.set(cx.waker());
            if self.validity.ended().is_some() { Poll::Ready(()) } else { Pin::new(&mut sleep).poll(cx) }
        })
        .await;
    }

    /// Keeps the session alive until it ends.
    pub(crate) async fn serve(self: Arc<Session>) {
        if let Ok(driver) = self.driver() {
            let session = Arc::clone(&self);
            let mut states = driver.state_watcher();
            drop(driver);
            self.runtime.spawn(async move { session.follow_states(&mut states).await });
        }
        let every = self.length / 6;
        while !self.is_over() {
            let next = Moment::from_nanos(self.confirmed.load(Ordering::Relaxed)) + every;
            if self.clock().now() < next {
                self.sleep_until(next).await;
                continue;
            }
            let sent = self.clock().now();
            match self.probe().await {
                Ok(_) => {}
                Err(Some(error)) => {
                    tracing::debug!(%error, "a probe of the session failed");
                    self.renewal_failed(failure(&error));
                    if is_over(&error) {
                        self.end();
                    }
                    self.sleep_until(sent + self.length / 20).await;
                }
                Err(None) => self.renewal_failed(timed_out()),
            }
        }
        self.end();
    }

    /// Sends one request that a quorum answers, for all that ask at the same time. Returns when it was sent.
    async fn probe(&self) -> Result<Moment, Option<zk::Error>> {
        let (clock, until) = (self.clock().clone(), self.validity.until());
        let patience = self.length / 3;
        let request = self.request(|driver| async move { ask_quorum(&driver).await });
        let probe = async move {
            let sent = clock.now();
            let answer = clock.within((sent + patience).min(until), request).await;
            (sent, answer.map_or(Err(None), |answer| answer.map_err(Some)))
        };
        let Some((sent, answer)) = self.probes.join(&self.runtime, probe).await else { return Err(None) };
        answer.map(|()| {
            self.confirm(sent);
            sent
        })
    }

    fn renewal_failed(&self, error: Error) {
        session_renewal_failed(ENGINE, &self.validity, RenewalFailure::of(error));
    }

    /// Follows the driver's state: it reports a broken connection at once, and the end of the session late.
    async fn follow_states(&self, states: &mut zk::StateWatcher) {
        loop {
            let state = self.next_state(states).await;
            if state.is_terminated() {
                self.end();
                return;
            }
            if state == zk::SessionState::Disconnected {
                self.renewal_failed(disconnected());
            }
        }
    }

    /// Returns the driver's next state. Gives the driver the current certificates while it connects by itself.
    async fn next_state(&self, states: &mut zk::StateWatcher) -> zk::SessionState {
        if let Some(tls) = &self.tls {
            while states.peek_state() == zk::SessionState::Disconnected && !self.is_over() {
                tls.refresh();
                let until = self.clock().now() + self.length / 20;
                if let Some(state) = self.clock().within(until, states.changed()).await {
                    return state;
                }
            }
        }
        states.changed().await
    }
}

/// Sends a request that a quorum answers and that changes nothing: the deletion of a node that nobody makes.
///
/// The deletion is proposed to all servers and fails when they have agreed. A `sync` is answered by the leader alone, which may have
/// been deposed without knowing it (ZooKeeper's `Leader.processSync`, `PrepRequestProcessor.pRequest`). A refusal (`NoAuth`) comes the
/// same way, unless the servers have `enableEagerACLCheck`: see docs/backends/zookeeper.md.
pub(crate) async fn ask_quorum(driver: &zk::Client) -> Result<(), zk::Error> {
    match driver.delete("/.fencepost-nothing", Some(i32::MAX)).await {
        Ok(()) | Err(zk::Error::NoNode | zk::Error::NoAuth | zk::Error::BadVersion) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Extends the claim's own lease to `ttl` after `sent`, if the session lasts as long.
///
/// ZooKeeper knows sessions only. A lease that is shorter than its session ends because this client deletes the node then.
pub(crate) fn extend(claim: &Claim, sent: Moment, ttl: Duration) {
    // First the end of the node, because another thread may delete the node after the confirmation. If that thread comes before both, the
    // claim has expired by then and is not confirmed.
    let end = (sent + ttl).as_nanos();
    let before = claim.note.fetch_max(end, Ordering::SeqCst);
    if !claim.confirm(sent, ttl) && before < end {
        // If this fails, a later renewal has failed as well.
        let _ = claim.note.compare_exchange(end, before, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl fencepost_core::Session for Session {
    fn id(&self) -> u64 {
        self.id as u64
    }

    /// Extends the claims' own leases from the sending of a request that a quorum answered: the session may live longer than they do, and
    /// a holder that is cut off must not believe in its lock for longer than its lease.
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let ttls: Vec<_> = due.iter().map(|claim| claim.ttl()).collect();
            let confirmed = Moment::from_nanos(self.confirmed.load(Ordering::Relaxed));
            // Several claims that are due one after the other need one request. A single one may be a user's extension, which needs all its
            // time.
            let recent = ttls.iter().min().is_some_and(|ttl| confirmed + *ttl / 6 > self.clock().now());
            let sent = if recent && due.len() > 1 {
                confirmed
            } else {
                let failed = |error: Option<_>| error.map_or_else(timed_out, |error| failure(&error));
                self.probe().await.map_err(failed)?
            };
            for (claim, ttl) in due.iter().zip(ttls) {
                extend(claim, sent, ttl);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::testing::NoTasks;
    use fencepost_core::{ClaimId, HolderInfo, Mode, Name, Want};

    use super::*;

    /// The client deletes the node at the end of the lease by another thread, which may run in the middle of a renewal.
    #[test]
    fn the_node_of_a_renewed_claim_stays_for_as_long_as_the_claim_is_valid() {
        const RENEWALS: u64 = 100_000;
        let (clock, ttl) = (Clock::manual(), Duration::from_secs(1_000));
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let want = Want { name: Name::new("lock").expect("a good name"), mode: Mode::Exclusive };
        let claim = Claim::new(ClaimId::from_u128(1), want, ttl, HolderInfo::labelled("test"), runtime);
        let start = clock.now();
        extend(&claim, start, ttl);
        std::thread::scope(|scope| {
            let renewals = scope.spawn(|| {
                for number in 1..=RENEWALS {
                    // Further than the margin between the two ends.
                    extend(&claim, start + ttl * u32::try_from(number).expect("it is small"), ttl);
                }
            });
            while !renewals.is_finished() {
                let until = claim.validity.until();
                let end = Moment::from_nanos(claim.note.load(Ordering::SeqCst));
                assert!(until <= end, "valid until {until:?}, and the node is deleted at {end:?}");
            }
        });
    }

    #[test]
    fn a_renewal_of_a_lost_claim_keeps_its_node_no_longer() {
        let (clock, ttl) = (Clock::manual(), Duration::from_secs(10));
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let want = Want { name: Name::new("lock").expect("a good name"), mode: Mode::Exclusive };
        let claim = Claim::new(ClaimId::from_u128(1), want, ttl, HolderInfo::labelled("test"), runtime);
        let start = clock.now();
        extend(&claim, start, ttl);
        claim.validity.end(fencepost_core::Loss::Evicted);
        extend(&claim, start + ttl / 2, ttl);
        assert_eq!(claim.note.load(Ordering::SeqCst), (start + ttl).as_nanos());
    }
}
