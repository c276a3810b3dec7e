//! The holders to name when a waiting time ends.

use std::time::Duration;

use futures_util::future::{BoxFuture, MaybeDone, maybe_done};

use crate::acquire::options::Single;
use crate::backend::admission::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;

/// A look at the claims that hold the lock, and then what it has found.
pub(super) type Blockers<'a> = MaybeDone<BoxFuture<'a, Result<Vec<ClaimInfo>>>>;

impl Single<'_> {
    /// Asks who holds the lock shortly before `deadline`, so that the error can say it without being late.
    pub(super) fn find_blockers(&self, deadline: Moment) -> Blockers<'_> {
        maybe_done(Box::pin(async move {
            if !self.client.capabilities.inspect {
                return Ok(Vec::new());
            }
            let early = (self.wait.unwrap_or_default() / 10).min(Duration::from_millis(100));
            self.client.runtime.clock().sleep_until(deadline.less(early)).await;
            let backend = &self.client.backend;
            let info = match backend.operator().inspect(self.name).await {
                Ok(info) => info,
                // The look is for the message alone. Whether the engine answers is another question.
                Err(error) if error.is_unreachable() => {
                    backend.reach().await?;
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            };
            Ok(info.claims.into_iter().filter(ClaimInfo::holds).collect())
        }))
    }
}

impl Single<'_> {
    /// Makes the error of a waiting time that has ended. It names the holders.
    pub(crate) fn timeout_error(&self, holders: Vec<ClaimInfo>, failure: Option<Error>) -> Error {
        // The rest of a longer wait is no round number.
        let wait = Duration::from_millis(self.wait.unwrap_or_default().as_micros().div_ceil(1_000) as u64);
        let failed = || match self.wait {
            Some(_) => {
                format!("no grant within the waiting time of {wait:?}, because the engine failed; check it")
            }
            None => format!(
                "no grant within {:?}, the limit of a request that does not wait, because the engine failed; check it",
                self.client.attempt_timeout + self.client.layer_delay
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
