//! The wait loop: one request from the call to the guard.

pub(crate) mod ask;
mod blockers;
mod on_behalf;
pub(crate) mod options;
mod outage;
mod outcome;
mod overdue;
pub(crate) mod reentrant;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::ask::Ask;
use crate::acquire::blockers::Blockers;
use crate::acquire::options::{Request, options};
use crate::acquire::outage::{Outage, unrenewed_error};
use crate::acquire::overdue::Overdue;
use crate::backend::admission::Mode;
use crate::backend::claim::{Claim, Want};
use crate::backend::{Attempt, Reply};
use crate::client::shared::ClientShared;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::guard::owned::Owned;
use crate::name::Name;
use crate::operator::holder::ClaimInfo;
use crate::telemetry::{self, Acquired};
use crate::time::Moment;
use crate::token::Token;
use crate::validity::{State, Validity};

pub(crate) use crate::acquire::outcome::Outcome;

/// A request that waits: await it, or set options first. See [`Mutex::lock`](crate::Mutex::lock).
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct Acquire<'a>(pub(crate) Request<'a>);

/// A request that answers `None` when the lock is busy: await it, or set options first. See
/// [`Mutex::try_lock`](crate::Mutex::try_lock).
#[derive(Debug)]
#[must_use = "nothing is asked for until it is awaited"]
pub struct TryAcquire<'a>(pub(crate) Request<'a>);

impl<'a> Acquire<'a> {
    pub(crate) fn new(client: &'a Arc<ClientShared>, name: &'a Name, mode: Mode) -> Self {
        Acquire(Request::new(client, name, mode, true))
    }
}

impl<'a> TryAcquire<'a> {
    pub(crate) fn new(client: &'a Arc<ClientShared>, name: &'a Name, mode: Mode) -> Self {
        TryAcquire(Request::new(client, name, mode, false))
    }
}

options!(Acquire, "an error that [`is_timeout`](crate::Error::is_timeout) and names who holds the lock");
options!(TryAcquire, "`None`");

impl<'a> IntoFuture for Acquire<'a> {
    type Output = Result<Guard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Guard>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = self.0.span();
        let work = async move { self.0.run().await?.waited() };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}

impl<'a> IntoFuture for TryAcquire<'a> {
    type Output = Result<Option<Guard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Option<Guard>>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let span = self.0.span();
        let work = async move { self.0.run().await?.tried() };
        if span.is_disabled() { Box::pin(work) } else { Box::pin(work.instrument(span)) }
    }
}

impl Request<'_> {
    /// Returns the span of the acquisition.
    pub(crate) fn span(&self) -> tracing::Span {
        match self.join {
            true => tracing::debug_span!("lock", name = %self.name, mode = %self.mode),
            false => tracing::debug_span!("try_lock", name = %self.name, mode = %self.mode),
        }
    }

    pub(crate) async fn run(self) -> Result<Outcome> {
        match self.asker() {
            Some(holder) => self.run_as(holder).await,
            None => {
                let start = self.start();
                self.run_from(start).await
            }
        }
    }

    /// When the call began, if anything needs to know.
    fn start(&self) -> Moment {
        match self.began {
            Some(began) => began,
            None if self.wait.is_some() || telemetry::measures_waits() => self.client.runtime.clock().now(),
            None => Moment::ZERO,
        }
    }

    async fn run_from(self, start: Moment) -> Result<Outcome> {
        let clock = self.client.runtime.clock();
        let result = self.acquire(start).await;
        let result = result.map_err(|error| error.of(self.name.clone()).on(self.client.engine()));
        let outcome = match &result {
            Ok(Outcome::Granted(guard)) => Acquired::Granted(guard.token()),
            Ok(Outcome::Busy) => Acquired::Busy,
            Ok(Outcome::Timeout(error)) => Acquired::Timeout(error),
            Err(error) => Acquired::Failed(error),
        };
        telemetry::acquired(self.client.engine(), self.name, outcome, || clock.now().since(start));
        result
    }

    async fn acquire(&self, start: Moment) -> Result<Outcome> {
        let client = self.client;
        client.check_open()?;
        client.check_ttl(self.ttl())?;
        self.check_limits()?;
        self.check_evict_overdue()?;
        client.check_replicas(self.replicas())?;
        ClientShared::check_texts(self.holder.as_deref(), self.reason.as_deref())?;
        client.check_mode(if self.read_write { Mode::Shared } else { self.mode })?;
        if let Mode::Permits { n, of } = self.mode
            && (n == 0 || n > of)
        {
            return Err(Error::invalid(format!(
                "{n} permits of {of} can never be granted; ask for 1 to {of}"
            )));
        }
        // Each turn is a new claim with a fresh id: the last one's place or grant is gone.
        loop {
            let claim = Arc::new(self.claim());
            let mut owned = Owned::enter(client, Arc::clone(&claim));
            let (deadline, first) = self.limits(start);
            match self.stand(&mut owned, deadline, first, Ask::Grant).await? {
                Stand::Granted(grant) => {
                    // If we were paused since the engine granted it, it goes back by the drop of `owned`.
                    let now = client.runtime.clock().now();
                    if !matches!(claim.validity.state(now), State::Lost(_)) {
                        owned.limit(self.at_least, self.max_hold);
                        return Ok(Outcome::Granted(Guard::new(owned, grant)));
                    }
                }
                Stand::Busy => {
                    owned.leave_nothing();
                    return Ok(Outcome::Busy);
                }
                Stand::Gone => {}
                Stand::Over { holders, failure } => return Ok(Outcome::Timeout(self.over(holders, failure))),
            }
            if self.id.is_some() {
                return Err(claim.gone());
            }
            if self.wait.is_some() && client.runtime.clock().now() >= deadline {
                return Ok(Outcome::Timeout(self.over(Vec::new(), None)));
            }
        }
    }

    /// Returns until when a claim lasts, and its first attempt. `start`: when the call began. Each turn of a call without a waiting time
    /// has a limit of its own: a grant that was lost by a pause says nothing about the engine.
    pub(crate) fn limits(&self, start: Moment) -> (Moment, Moment) {
        let attempt = self.client.attempt_timeout;
        if let Some(wait) = self.wait {
            return (start + wait, start + wait.max(attempt));
        }
        if self.join || attempt.is_zero() {
            return (Moment::NEVER, Moment::NEVER);
        }
        let limit = self.client.runtime.clock().now() + attempt + self.client.probing;
        (limit, limit)
    }

    fn claim(&self) -> Claim {
        let client = self.client;
        let want = Want { name: self.name.clone(), mode: self.mode };
        let (holder, runtime) = (self.holder.as_ref().unwrap_or(&client.holder), client.runtime.clone());
        let id = self.id.unwrap_or_else(|| runtime.fresh_id());
        let mut claim = Claim::new(id, want, self.ttl(), Arc::clone(holder), runtime);
        claim.waits = self.join;
        claim.unfair = self.unfair;
        claim.read_write = self.read_write;
        claim.renewed = !self.fixed;
        claim.replicas = self.replicas();
        (claim.history, claim.needs_run) = (self.history, self.needs_run);
        claim.reason.clone_from(&self.reason);
        (claim.max_hold, claim.max_wait) = self.shown_limits();
        claim
    }

    /// One claim from its first attempt to its end. The first attempt may last until `first`.
    pub(crate) async fn stand(
        &self,
        owned: &mut Owned,
        deadline: Moment,
        first: Moment,
        ask: Ask,
    ) -> Result<Stand> {
        let clock = self.client.runtime.clock();
        if ask != Ask::Grant {
            owned.claim().validity.forget_unrenewed();
        }
        let mut outage = Outage::default();
        let mut blockers = Blockers::new(self, deadline, first);
        let mut overdue = Overdue::new(self, ask);
        let (mut until, mut silent) = (first, true);
        loop {
            let mut asked = Moment::ZERO;
            let patience = self.patience(&owned.claim().validity);
            // Dropped at any await below, or left by `?`: `owned` withdraws.
            let (answer, heard) = match ask.send(owned.entry(), self.join) {
                Reply::Ready(answer) => (answer, false),
                coming => {
                    asked = clock.now();
                    (clock.within(until.min(patience), coming).await, true)
                }
            };
            until = deadline;
            let validity = &owned.claim().validity;
            // The engine has been away for longer than a claim waits for it.
            let too_long = |since: &Moment| clock.now() >= *since + self.client.outage;
            let given_up =
                || validity.unrenewed_since().filter(too_long).and_then(|_| unrenewed_error(validity));
            let again = match answer {
                Some(Ok(Attempt::Granted(grant))) => return Ok(Stand::Granted(grant)),
                Some(Ok(Attempt::Gone)) => return Ok(Stand::Gone),
                Some(Ok(Attempt::Blocked { .. })) if !self.join => return Ok(Stand::Busy),
                Some(Ok(Attempt::Blocked { again, .. })) => {
                    (outage, silent) = (Outage::default(), false);
                    if heard {
                        validity.clear_unrenewed();
                    } else if let Some(error) = given_up() {
                        return Err(error);
                    }
                    if ask == Ask::Grant {
                        owned.keep();
                    }
                    if let Some(tell) = &self.queued {
                        tell();
                    }
                    again.unwrap_or(Moment::NEVER)
                }
                Some(Err(error)) => {
                    outage.since = outage.since.into_iter().chain(validity.unrenewed_since()).min();
                    outage.pause(error, self, clock.now())?
                }
                None => {
                    if let Some(error) = given_up() {
                        return Err(error);
                    }
                    // Known to be busy. The waiting time may end while the engine is at work; that is no failure of it.
                    if silent || clock.now().since(asked) >= SILENCE {
                        let why = owned.entry().why_silent();
                        outage
                            .last
                            .get_or_insert_with(|| why.unwrap_or_else(|| Error::no_answer().unknown()));
                    }
                    // Before the deadline the patience has ended, and the place was renewed since. It asks again, with new patience:
                    // with the old one each answer that is not there at once would be given up.
                    if clock.now() >= patience {
                        owned.claim().validity.forget_unrenewed();
                    }
                    clock.now()
                }
            };
            if deadline != Moment::NEVER && clock.now() >= deadline {
                return Ok(self.out_of_time(&owned.claim().validity, blockers, outage).await);
            }
            let failing = outage.last.is_some();
            let again = again.min(deadline);
            self.rest(owned, again, failing, &mut blockers, &mut overdue).await;
            self.client.check_open()?;
        }
    }

    /// Until when a claim whose place in the queue cannot be renewed is tried.
    fn patience(&self, validity: &Validity) -> Moment {
        validity.unrenewed_since().map_or(Moment::NEVER, |since| since + self.client.outage)
    }

    /// Until it is worth asking the engine: it says so, the time has come, or the claim's place has not been renewed for too long.
    async fn rest(
        &self,
        owned: &mut Owned,
        again: Moment,
        failing: bool,
        blockers: &mut Blockers<'_>,
        overdue: &mut Overdue<'_>,
    ) {
        let clock = self.client.runtime.clock();
        let claim = Arc::clone(owned.claim());
        // Only a claim that is renewed can miss a renewal.
        let mut watch = (claim.kept.load(Ordering::Relaxed) != 0).then(|| claim.validity.watch(clock));
        // From here on a close is told, also one that comes before it is first waited for.
        let mut closing = pin!(self.client.closing.notified());
        if self.client.check_open().is_err() {
            return;
        }
        loop {
            let stranded = claim.validity.unrenewed_since();
            // After an error its pause counts alone.
            let patience = if failing { Moment::NEVER } else { self.patience(&claim.validity) };
            let until = again.min(patience).min(blockers.next()).min(overdue.next());
            let mut sleep = clock.sleep_until(until);
            let woken = poll_fn(|cx| {
                blockers.poll(cx);
                if overdue.poll(cx) {
                    return Poll::Ready(Woken::Time);
                }
                // After an error the engine is left alone for the pause.
                if !failing && owned.entry().poll_wait(cx, until).is_ready() {
                    return Poll::Ready(Woken::Engine);
                }
                if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Close);
                }
                // A watch on what has ended wakes at once, and would go on doing so.
                if let Some(watch) = watch.as_mut().filter(|_| claim.validity.ended().is_none()) {
                    watch.set(cx.waker());
                    if claim.validity.unrenewed_since() != stranded {
                        return Poll::Ready(Woken::Renewer);
                    }
                }
                Pin::new(&mut sleep).poll(cx).map(|()| Woken::Time)
            })
            .await;
            let now = clock.now();
            blockers.look(now);
            overdue.look(now);
            match woken {
                Woken::Engine | Woken::Close => return,
                Woken::Time if now >= again.min(patience) => return,
                Woken::Time | Woken::Renewer => {}
            }
        }
    }

    /// The waiting time is over, because the lock is busy or the engine fails.
    async fn out_of_time(&self, validity: &Validity, blockers: Blockers<'_>, outage: Outage) -> Stand {
        let mut failure = outage.last.or_else(|| unrenewed_error(validity));
        let holders = match blockers.last_word(failure.is_none()).await {
            Ok(holders) => holders,
            Err(error) => {
                failure = failure.or(Some(error).filter(Error::is_unreachable));
                Vec::new()
            }
        };
        Stand::Over { holders, failure }
    }
}

/// An engine that has not answered for so long is taken to have failed.
const SILENCE: Duration = Duration::from_secs(1);

/// By what a rest in the queue was ended.
enum Woken {
    Engine,
    /// Its place cannot be renewed, or can again.
    Renewer,
    /// The client is closed.
    Close,
    Time,
}

/// How a claim's wait in the queue ended.
pub(crate) enum Stand {
    Granted(Token),
    Busy,
    Gone,
    Over { holders: Vec<ClaimInfo>, failure: Option<Error> },
}
