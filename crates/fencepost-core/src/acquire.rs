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
use crate::holder::ClaimInfo;
use crate::life::{Life, State};
use crate::name::Name;
use crate::queue::Mode;
use crate::request::{Request, options};
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
        let start = match self.began {
            Some(began) => began,
            None if self.wait.is_some() || cfg!(feature = "metrics") => clock.now(),
            None => Moment::ZERO,
        };
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
            match self.stand(&mut owned, deadline, deadline.max(start + client.attempt_timeout)).await? {
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

    /// One claim from its first attempt to its end. The first attempt may last until `first`.
    async fn stand(&self, owned: &mut Owned, deadline: Moment, first: Moment) -> Result<Stand> {
        let clock = self.client.aid.clock();
        let mut trouble = Trouble::default();
        let mut witness = Witness::new(self, deadline, first);
        let (mut until, mut silent) = (first, true);
        loop {
            let mut asked = Moment::ZERO;
            let patience = self.patience(&owned.claim().life);
            // Dropped at any await below, or left by `?`: `owned` withdraws.
            let (answer, heard) = match owned.entry().attempt() {
                Reply::Ready(answer) => (answer, false),
                coming => {
                    asked = clock.now();
                    (clock.within(until.min(patience), coming).await, true)
                }
            };
            until = deadline;
            let life = &owned.claim().life;
            // The engine has been away for longer than a claim waits for it.
            let too_long = |since: &Moment| clock.now() >= *since + self.client.outage;
            let given_up = || life.stranded().filter(too_long).and_then(|_| stranded(life));
            let again = match answer {
                Some(Ok(Attempt::Granted(grant))) => return Ok(Stand::Granted(grant)),
                Some(Ok(Attempt::Gone)) => return Ok(Stand::Gone),
                Some(Ok(Attempt::Blocked { .. })) if !self.join => return Ok(Stand::Busy),
                Some(Ok(Attempt::Blocked { again, .. })) => {
                    (trouble, silent) = (Trouble::default(), false);
                    if heard {
                        life.unstrand();
                    } else if let Some(error) = given_up() {
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
                    if let Some(error) = given_up().filter(|_| clock.now() < deadline) {
                        return Err(error);
                    }
                    // Known to be busy. The waiting time may end while the engine is at work; that is no failure of it.
                    if silent || clock.now().since(asked) >= SILENCE {
                        let error = Error::new(ErrorKind::Unreachable, "the engine did not answer in time");
                        trouble.last.get_or_insert(error.unknown());
                    }
                    deadline
                }
            };
            if deadline != Moment::NEVER && clock.now() >= deadline {
                return Ok(self.out_of_time(&owned.claim().life, witness, trouble).await);
            }
            let failing = trouble.last.is_some();
            let again = again.min(deadline);
            self.rest(owned, again, failing, &mut witness).await;
            self.client.check_open()?;
        }
    }

    /// Until when a claim whose place in line cannot be renewed is tried.
    fn patience(&self, life: &Life) -> Moment {
        life.stranded().map_or(Moment::NEVER, |since| since + self.client.outage)
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
            let patience = if failing { Moment::NEVER } else { self.patience(&claim.life) };
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
    async fn out_of_time(&self, life: &Life, witness: Witness<'_>, trouble: Trouble) -> Stand {
        let mut failure = trouble.last.or_else(|| stranded(life));
        let holders = match witness.last_word(failure.is_none()).await {
            Ok(holders) => holders,
            Err(error) => {
                failure = failure.or(Some(error).filter(Error::is_unreachable));
                Vec::new()
            }
        };
        Stand::Over { holders, failure }
    }

    fn over(&self, holders: Vec<ClaimInfo>, failure: Option<Error>) -> Error {
        // The rest of a longer wait is no round number.
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
