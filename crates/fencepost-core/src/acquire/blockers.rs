//! The holders to name when a waiting time ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::options::Single;
use crate::backend::admission::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;

/// The claims that hold the lock.
type Seen = Result<Vec<ClaimInfo>>;

/// Asks who holds the lock shortly before the waiting time ends, so that the error can say it without being late.
pub(crate) struct Blockers<'a> {
    request: &'a Single<'a>,
    /// When to ask; `NEVER` once asked.
    at: Moment,
    /// Until when the call may last, whatever its waiting time.
    first: Moment,
    asking: Option<Pin<Box<dyn Future<Output = Seen> + Send>>>,
    seen: Seen,
}

impl<'a> Blockers<'a> {
    pub(crate) fn new(request: &'a Single<'a>, deadline: Moment, first: Moment) -> Blockers<'a> {
        let early = (request.wait.unwrap_or_default() / 10).min(Duration::from_millis(100));
        let at = if request.client.capabilities.inspect { deadline.less(early) } else { Moment::NEVER };
        Blockers { request, at, first, asking: None, seen: Ok(Vec::new()) }
    }

    pub(crate) fn next(&self) -> Moment {
        self.at
    }

    pub(crate) fn look(&mut self, now: Moment) {
        if now < self.at {
            return;
        }
        self.at = Moment::NEVER;
        let backend = Arc::clone(&self.request.client.backend);
        let name = self.request.name.clone();
        self.asking = Some(Box::pin(async move {
            let info = match backend.operator().inspect_claims(&name).await {
                Ok(info) => info,
                // The look is for the message alone. Whether the engine answers is another question.
                Err(error) if error.is_unreachable() => {
                    backend.reach().await?;
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            };
            Ok(info.claims.into_iter().filter(ClaimInfo::holds).collect())
        }));
    }

    pub(crate) fn poll(&mut self, cx: &mut std::task::Context<'_>) {
        if let Some(asking) = &mut self.asking
            && let Poll::Ready(seen) = asking.as_mut().poll(cx)
        {
            self.seen = seen;
            self.asking = None;
        }
    }

    /// Returns whether nothing was asked yet: an attempt was under way when it was time to.
    pub(crate) fn is_late(&self) -> bool {
        self.at != Moment::NEVER
    }

    pub(crate) fn limit(&self) -> Moment {
        self.first
    }

    /// Returns the holders, if the engine names them in time. If `busy` it waits for the answer, no longer than the first attempt might
    /// have taken.
    pub(crate) async fn last_word(mut self, busy: bool) -> Seen {
        if self.is_late() {
            self.look(Moment::NEVER);
        }
        self.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        if let Some(asking) = self.asking.take().filter(|_| busy) {
            let seen = self.request.client.runtime.clock().within(self.first, asking).await;
            self.seen = seen.unwrap_or(self.seen);
        }
        self.seen
    }
}

impl Single<'_> {
    /// Returns the error of a waiting time that is over, with the holders.
    pub(crate) fn over(&self, holders: Vec<ClaimInfo>, failure: Option<Error>) -> Error {
        // The rest of a longer wait is no round number.
        let wait = Duration::from_millis(self.wait.unwrap_or_default().as_micros().div_ceil(1_000) as u64);
        let failed = || match self.wait {
            Some(_) => {
                format!("no grant within the waiting time of {wait:?}, because the engine failed; check it")
            }
            None => format!(
                "no grant within {:?}, the limit of a request that does not wait, because the engine failed; check it",
                self.client.attempt_timeout + self.client.probing
            ),
        };
        let error = match failure {
            Some(error) => Error::new(error.kind(), failed()).because_of(error),
            None => {
                Error::new(ErrorKind::Timeout, format!("still busy after {wait:?}{}", self.own(&holders)))
                    .transient(true)
                    .held_by(holders)
            }
        };
        error.of(self.name.clone()).on(self.client.engine())
    }

    /// Returns the hint for a caller that may wait for itself.
    fn own(&self, holders: &[ClaimInfo]) -> &'static str {
        let own = &self.client.holder;
        let is_own = |claim: &ClaimInfo| claim.holder.pid == own.pid && claim.holder.host == own.host;
        match self.mode {
            _ if !holders.iter().any(|claim| is_own(claim) && !claim.detached) => "",
            Mode::Permits { .. } => {
                "; a task of this process holds permits: if it is the caller itself, release them first"
            }
            _ => {
                "; a task of this process holds it: if it is the caller itself, release first or use `reentrant()`"
            }
        }
    }
}
