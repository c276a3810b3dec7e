//! One request from the call to the guard.

pub(crate) mod ask;
mod blockers;
pub(crate) mod options;
pub(crate) mod outage;
mod outcome;
mod overdue;
pub(crate) mod reentrant;
pub(crate) mod request;
pub(crate) mod wait;

use std::sync::Arc;

use crate::acquire::ask::Ask;
use crate::acquire::options::Single;
use crate::acquire::wait::Waited;
use crate::backend::admission::Mode;
use crate::backend::claim::{Claim, Want};
use crate::client::shared::ClientShared;
use crate::entry::place::Leave;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::guard::owned::Owned;
use crate::telemetry::{self, Acquired};
use crate::time::Moment;
use crate::validity::State;

pub(crate) use crate::acquire::outcome::Outcome;
pub use crate::acquire::request::Acquire;
pub(crate) use crate::acquire::request::{How, Try, What};

impl Single<'_> {
    /// Asks for the lock. The functions below borrow the request, because each that takes it would have a copy in each waiter.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep the request twice")]
    pub(crate) fn run(self) -> impl Future<Output = Result<Outcome>> {
        async move {
            match self.asker() {
                Some(holder) => self.run_as(holder).await,
                None => self.run_from(self.start()).await,
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

    async fn run_from(&self, start: Moment) -> Result<Outcome> {
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
        let (mut lost, mut pass) = (0, self.began);
        // Each pass is a new claim with a fresh id: the last one's position or grant is gone.
        loop {
            let claim = Arc::new(self.claim());
            let mut owned = Owned::enter(client, Arc::clone(&claim));
            let (deadline, first) = self.limits(start, pass.take());
            match self.wait_for_grant(&mut owned, deadline, first, Ask::Grant).await? {
                Waited::Granted(grant) => {
                    // If we were paused since the engine granted it, it goes back by the drop of `owned`.
                    let now = client.runtime.clock().now();
                    if !matches!(claim.validity.state(now), State::Lost(_)) {
                        owned.limit(self.at_least, self.max_hold);
                        return Ok(Outcome::Granted(Guard::new(owned, grant)));
                    }
                    lost += 1;
                    if lost == MOST_LOST {
                        return Err(self.too_short());
                    }
                    if self.needs_run {
                        // A firing reads the runs again once it has its lock, and would take this run for another one. If the run cannot be
                        // cancelled in time, the drop goes on with that.
                        let _ = owned.leave(Leave::Withdraw, client.release_until()).await;
                    }
                }
                Waited::Busy => {
                    return Ok(Outcome::Busy);
                }
                Waited::Gone => {}
                Waited::TimedOut { holders, failure } => {
                    return Ok(Outcome::Timeout(self.timeout_error(holders, failure)));
                }
            }
            if self.on_behalf.id.is_some() {
                return Err(claim.gone());
            }
            if self.wait.is_some() && client.runtime.clock().now() >= deadline {
                return Ok(Outcome::Timeout(self.timeout_error(Vec::new(), None)));
            }
        }
    }

    fn too_short(&self) -> Error {
        let message = format!(
            "the lease of {:?} ended before its grant arrived, {MOST_LOST} times; give a longer ttl, or find out why the \
             engine's answers take so long",
            self.ttl()
        );
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Returns two limits: of the wait, and of the first attempt. `start`: when the call began. `pass`: when this pass of a call without a
    /// waiting time began; `None`: now. Each later pass gets new limits: the last claim was lost because this process was paused, and that
    /// says nothing about the engine.
    pub(crate) fn limits(&self, start: Moment, pass: Option<Moment>) -> (Moment, Moment) {
        let attempt = self.client.attempt_timeout;
        if let Some(wait) = self.wait {
            return (start + wait, start + wait.max(attempt));
        }
        if self.join || attempt.is_zero() {
            return (Moment::NEVER, Moment::NEVER);
        }
        let pass = pass.unwrap_or_else(|| self.client.runtime.clock().now());
        let limit = pass + attempt + self.client.layer_delay;
        (limit, limit)
    }

    fn claim(&self) -> Claim {
        let client = self.client;
        let want = Want { name: self.name.clone(), mode: self.mode };
        let (holder, runtime) = (self.holder.as_ref().unwrap_or(&client.holder), client.runtime.clone());
        let id = self.on_behalf.id.unwrap_or_else(|| runtime.fresh_id());
        let mut claim = Claim::new(id, want, self.ttl(), Arc::clone(holder), runtime);
        if self.on_behalf.id.is_some() {
            // The program that chose the id can make the text of the lease.
            claim.give_lease();
        }
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
}

/// How many grants of one call may be lost before they arrive.
const MOST_LOST: u32 = 3;
