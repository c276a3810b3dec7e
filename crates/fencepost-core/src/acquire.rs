//! The wait loop: one request from the call to the guard.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use crate::backend::{Attempt, Reply};
use crate::claim::{Claim, Want};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Owned};
use crate::holder::{ClaimInfo, Holder};
use crate::life::{Life, State};
use crate::name::Name;
use crate::queue::Mode;
use crate::telemetry;
use crate::time::Moment;
use crate::trouble::{Trouble, stranded};
use crate::witness::Witness;

/// A request that waits: await it, or set options first. See [`Mutex::lock`](crate::Mutex::lock).
#[must_use = "nothing is asked for until it is awaited"]
pub struct Acquire<'a>(pub(crate) Request<'a>);

/// A request that answers `None` when the lock is busy: await it, or set options first. See
/// [`Mutex::try_lock`](crate::Mutex::try_lock).
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryAcquire<'a>(pub(crate) Request<'a>);

#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Arc<Client>,
    pub(crate) name: &'a Name,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    /// None: no bound of the caller's.
    pub(crate) wait: Option<Duration>,
    pub(crate) join: bool,
    pub(crate) paired: bool,
    pub(crate) replicas: u32,
    pub(crate) holder: Option<Arc<Holder>>,
    pub(crate) reason: Option<Arc<str>>,
}

impl<'a> Request<'a> {
    fn new(client: &'a Arc<Client>, name: &'a Name, mode: Mode, join: bool) -> Request<'a> {
        Request {
            client,
            name,
            mode,
            ttl: client.ttl,
            renewed: true,
            wait: None,
            join,
            paired: false,
            replicas: client.replicas,
            holder: None,
            reason: None,
        }
    }
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(client: &'a Arc<Client>, name: &'a Name, mode: Mode) -> Self {
        Acquire(Request::new(client, name, mode, true))
    }
}

impl<'a> TryAcquire<'a> {
    pub(crate) fn new(client: &'a Arc<Client>, name: &'a Name, mode: Mode) -> Self {
        TryAcquire(Request::new(client, name, mode, false))
    }
}

/// The options that every request has, on a tuple struct around something with fields of these names.
macro_rules! options {
    ($type:ident, $on_time:literal) => {
        impl<'a> $type<'a> {
            #[doc = concat!("Waits at most so long, connecting and retries included. When the time is over: ", $on_time, ".")]
            pub fn wait(mut self, wait: std::time::Duration) -> Self {
                self.0.wait = Some(wait);
                self.0.join = true;
                self
            }

            /// The length of the lease, renewed at a third of it as long as the guard lives.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.0.ttl = ttl;
                self.0.renewed = true;
                self
            }

            /// A fixed lease: it is not renewed and ends so long after the grant, unless the guard is extended.
            pub fn lease(mut self, lease: std::time::Duration) -> Self {
                self.0.ttl = lease;
                self.0.renewed = false;
                self
            }

            /// The grant counts only when so many replicas of the engine have it: else it is given back, and the answer is an
            /// error. A renewal that fewer have is none: the lock is lost at the end of its lease if that goes on. Zero:
            /// none. An engine [without replicas](crate::Capabilities::replicas) refuses.
            pub fn replicas(mut self, replicas: u32) -> Self {
                self.0.replicas = replicas;
                self
            }

            /// How this holder is shown to operators, instead of the client's label: up to
            /// [`Holder::MAX_BYTES`](crate::Holder::MAX_BYTES).
            pub fn holder(mut self, label: &str) -> Self {
                self.0.holder = Some($crate::holder::Holder::labelled(label));
                self
            }

            /// What it is for, as shown to operators: no longer than a label.
            pub fn reason(mut self, reason: &str) -> Self {
                self.0.reason = Some(reason.into());
                self
            }
        }

        impl std::fmt::Debug for $type<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("wait", &self.0.wait)
                    .field("ttl", &self.0.ttl)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use options;

options!(Acquire, "an error that [`is_timeout`](crate::Error::is_timeout) and names who holds the lock");
options!(TryAcquire, "`None`");

impl<'a> IntoFuture for Acquire<'a> {
    type Output = Result<Guard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Guard>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = tracing::debug_span!("lock", name = %self.0.name, mode = %self.0.mode);
        let work = async move {
            match self.0.run().await? {
                Outcome::Granted(guard) => Ok(guard),
                Outcome::Busy => unreachable!("a claim in line is not answered busy"),
                Outcome::Timeout(error) => Err(error),
            }
        };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}

impl<'a> IntoFuture for TryAcquire<'a> {
    type Output = Result<Option<Guard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = tracing::debug_span!("try_lock", name = %self.0.name, mode = %self.0.mode);
        let work = async move {
            match self.0.run().await? {
                Outcome::Granted(guard) => Ok(Some(guard)),
                Outcome::Busy => Ok(None),
                // The time is over because the lock is busy, or because the engine did not answer.
                Outcome::Timeout(error) if error.is_timeout() => Ok(None),
                Outcome::Timeout(error) => Err(error),
            }
        };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}

pub(crate) enum Outcome {
    Granted(Guard),
    Busy,
    Timeout(Error),
}

impl Request<'_> {
    pub(crate) async fn run(self) -> Result<Outcome> {
        let clock = self.client.aid.clock();
        let start = if self.wait.is_some() || cfg!(feature = "metrics") { clock.now() } else { Moment::ZERO };
        let result = self.acquire(start).await;
        let outcome = match &result {
            Ok(Outcome::Granted(_)) => "granted",
            Ok(Outcome::Busy) => "busy",
            Ok(Outcome::Timeout(_)) => "timeout",
            Err(_) => "error",
        };
        telemetry::outcome(self.client.engine(), outcome, || clock.now().since(start));
        result.map_err(|error| error.of(self.name.clone()).on(self.client.engine()))
    }

    async fn acquire(&self, start: Moment) -> Result<Outcome> {
        let client = self.client;
        client.check_open()?;
        client.check_ttl(self.ttl)?;
        client.check_replicas(self.replicas)?;
        Client::check_texts(self.holder.as_deref(), self.reason.as_deref())?;
        client.check_mode(if self.paired { Mode::Shared } else { self.mode })?;
        if let Mode::Permits { n, of } = self.mode
            && (n == 0 || n > of)
        {
            return Err(Error::invalid(format!("{n} permits of {of} can never be had; ask for 1 to {of}")));
        }
        let deadline = self.wait.map_or(Moment::NEVER, |wait| start + wait);
        // Each turn is a new claim with a fresh id: the last one's place or grant is gone.
        loop {
            let claim = Arc::new(self.claim());
            let mut owned = Owned::enter(client, Arc::clone(&claim));
            match self.stand(&mut owned, deadline).await? {
                Stand::Granted(grant) => {
                    // If we were paused since the engine granted it, it goes back by the drop of `owned`.
                    let now = client.aid.clock().now();
                    if !matches!(claim.life.state(now), State::Lost(_)) {
                        return Ok(Outcome::Granted(owned.into_guard(grant)));
                    }
                }
                Stand::Busy => {
                    owned.leave_nothing();
                    return Ok(Outcome::Busy);
                }
                Stand::Gone => {}
                Stand::Over { holders, failure } => return Ok(Outcome::Timeout(self.over(holders, failure))),
            }
            if client.aid.clock().now() >= deadline {
                return Ok(Outcome::Timeout(self.over(Vec::new(), None)));
            }
        }
    }

    fn claim(&self) -> Claim {
        let client = self.client;
        let want = Want { name: self.name.clone(), mode: self.mode };
        let holder = self.holder.as_ref().unwrap_or(&client.holder);
        let mut claim =
            Claim::new(client.aid.fresh_id(), want, self.ttl, Arc::clone(holder), client.aid.clone());
        claim.join = self.join;
        claim.paired = self.paired;
        claim.renewed = self.renewed;
        claim.replicas = self.replicas;
        claim.reason.clone_from(&self.reason);
        claim
    }

    /// One claim from its first attempt to its end.
    async fn stand(&self, owned: &mut Owned, deadline: Moment) -> Result<Stand> {
        let clock = self.client.aid.clock();
        let mut trouble = Trouble::default();
        let mut witness = Witness::new(self, deadline);
        loop {
            let asked = clock.now();
            // Dropped at any await below, or left by `?`: `owned` withdraws.
            let (answer, heard) = match owned.entry().attempt() {
                Reply::Ready(answer) => (answer, false),
                coming => (clock.within(deadline, coming).await, true),
            };
            let life = &owned.claim().life;
            let again = match answer {
                Some(Ok(Attempt::Granted(grant))) => return Ok(Stand::Granted(grant)),
                Some(Ok(Attempt::Gone)) => return Ok(Stand::Gone),
                Some(Ok(Attempt::Blocked { .. })) if !self.join => return Ok(Stand::Busy),
                Some(Ok(Attempt::Blocked { again, .. })) => {
                    trouble = Trouble::default();
                    let too_long = |since: &Moment| clock.now() >= *since + self.client.outage;
                    if heard {
                        life.unstrand();
                    } else if let Some(error) = life.stranded().filter(too_long).and_then(|_| stranded(life))
                    {
                        return Err(error);
                    }
                    owned.keep();
                    again.unwrap_or(Moment::NEVER)
                }
                Some(Err(error)) => {
                    trouble.since = trouble.since.into_iter().chain(life.stranded()).min();
                    trouble.pause(error, self, clock.now())?
                }
                None => {
                    // A waiting time of milliseconds may end while the engine is at work; that is no failure of it.
                    if clock.now().since(asked) >= SILENCE {
                        let error = Error::new(ErrorKind::Unreachable, "the engine did not answer in time");
                        trouble.last.get_or_insert(error.unknown());
                    }
                    deadline
                }
            };
            if deadline != Moment::NEVER && clock.now() >= deadline {
                return Ok(self.out_of_time(&owned.claim().life, witness, trouble));
            }
            let failing = trouble.last.is_some();
            let again = again.min(deadline);
            self.rest(owned, again, failing, &mut witness).await;
            self.client.check_open()?;
        }
    }

    /// Until it is worth asking the engine: it says so, the time has come, or the claim's place has not been renewed for too long.
    async fn rest(&self, owned: &mut Owned, again: Moment, failing: bool, witness: &mut Witness<'_>) {
        let clock = self.client.aid.clock();
        let claim = Arc::clone(owned.claim());
        // Only who is renewed can be stranded.
        let mut watch = (claim.kept.load(Ordering::Relaxed) != 0).then(|| claim.life.watch());
        // From here on a close is told, also one that comes before it is first waited for.
        let mut closing = pin!(self.client.closing.notified());
        if self.client.check_open().is_err() {
            return;
        }
        loop {
            let stranded = claim.life.stranded();
            // After an error its pause counts alone.
            let patience = stranded.filter(|_| !failing);
            let patience = patience.map_or(Moment::NEVER, |since| since + self.client.outage);
            let until = again.min(patience).min(witness.next());
            let mut sleep = clock.sleep_until(until);
            let woken = poll_fn(|cx| {
                witness.poll(cx);
                // After an error the engine is left alone for the pause.
                if !failing && owned.entry().poll_wait(cx, until).is_ready() {
                    return Poll::Ready(Woken::Engine);
                }
                if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Close);
                }
                // A watch on what has ended wakes at once, and would for ever.
                if let Some(watch) = watch.as_mut().filter(|_| claim.life.ended().is_none()) {
                    watch.set(cx.waker());
                    if claim.life.stranded() != stranded {
                        return Poll::Ready(Woken::Keeper);
                    }
                }
                Pin::new(&mut sleep).poll(cx).map(|()| Woken::Time)
            })
            .await;
            let now = clock.now();
            witness.look(now);
            match woken {
                Woken::Engine | Woken::Close => return,
                Woken::Time if now >= again.min(patience) => return,
                Woken::Time | Woken::Keeper => {}
            }
        }
    }

    /// The waiting time is over, because the lock is busy or the engine fails.
    fn out_of_time(&self, life: &Life, witness: Witness<'_>, trouble: Trouble) -> Stand {
        let mut failure = trouble.last.or_else(|| stranded(life));
        let holders = match witness.last_word() {
            Ok(holders) => holders,
            Err(error) => {
                failure = failure.or(Some(error).filter(Error::is_unreachable));
                Vec::new()
            }
        };
        Stand::Over { holders, failure }
    }

    fn over(&self, holders: Vec<ClaimInfo>, failure: Option<Error>) -> Error {
        // What is left of a longer wait is no round number.
        let wait = Duration::from_millis(self.wait.unwrap_or_default().as_micros().div_ceil(1_000) as u64);
        let failed =
            || format!("the engine failed until the waiting time of {wait:?} was over; see to the engine");
        let error = match failure {
            Some(error) => Error::new(error.kind(), failed()).because_of(error),
            None => Error::new(ErrorKind::Timeout, format!("still busy after {wait:?}"))
                .transient(true)
                .held_by(holders),
        };
        error.of(self.name.clone()).on(self.client.engine())
    }
}

/// An engine that has not answered for so long is taken to have failed.
const SILENCE: Duration = Duration::from_secs(1);

/// By what a rest in line was ended.
enum Woken {
    Engine,
    /// Its place cannot be renewed, or can again.
    Keeper,
    /// The client is closed.
    Close,
    Time,
}

/// How a claim's stand in line ended.
enum Stand {
    Granted(crate::backend::Grant),
    Busy,
    Gone,
    Over { holders: Vec<ClaimInfo>, failure: Option<Error> },
}
