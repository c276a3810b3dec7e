//! The engine fails while a call waits.

use std::time::Duration;

use crate::acquire::options::Single;
use crate::error::{Effect, Error, Result};
use crate::time::{Backoff, Moment};
use crate::validity::Validity;

/// Counts the failures of the engine during one call and paces the retries. Every step is idempotent, so a retry settles a lost reply.
pub(crate) struct Outage {
    pub(crate) since: Option<Moment>,
    backoff: Backoff,
    pub(crate) last: Option<Error>,
}

impl Default for Outage {
    fn default() -> Outage {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(1280));
        Outage { since: None, backoff, last: None }
    }
}

impl Outage {
    /// Notes that a request had no answer, as `why` says. The engine's own words, if it has failed before, tell more.
    pub(crate) fn note_silence(&mut self, why: Error) {
        self.last = Some(match self.last.take() {
            Some(last) if why.effect() == Effect::Unknown => last.unknown(),
            Some(last) => last,
            None => why,
        });
    }

    /// When to ask again, or the error if it is final or has gone on too long. `asked`: when the request was sent that failed.
    pub(crate) fn pause(
        &mut self,
        error: Error,
        request: &Single<'_>,
        asked: Moment,
        now: Moment,
    ) -> Result<Moment> {
        let since = *self.since.get_or_insert(asked);
        // An earlier request may still have taken effect, although this one had none.
        let is_unknown = self.last.as_ref().is_some_and(|last| last.effect() == Effect::Unknown);
        let error = if is_unknown { error.unknown() } else { error };
        let pause = self.backoff.pause();
        // Without a waiting time a few quick repeats settle a lost reply; more would be waiting.
        let patience =
            if request.join { now < since + request.client.outage } else { self.backoff.count() < 4 };
        if !error.is_transient() || !patience {
            return Err(error);
        }
        tracing::debug!(%error, "the engine failed, asking again");
        self.last = Some(error);
        Ok(now + pause)
    }
}

/// Returns why a position in the queue is given up, if it cannot be renewed. The error is of the kind that the engine gave.
pub(crate) fn unrenewed_error(validity: &Validity) -> Option<Error> {
    let why = validity.why_unrenewed()?;
    let error = Error::new(why.kind, "the position in the queue could not be renewed; check the engine");
    Some(error.transient(why.transient).because(why.why.to_string()))
}
