//! An engine that fails while somebody waits.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::life::Life;
use crate::request::Request;
use crate::time::Moment;

/// An engine that fails is asked again for a while: every step is idempotent, so a lost reply is settled by asking.
#[derive(Default)]
pub(crate) struct Trouble {
    pub(crate) since: Option<Moment>,
    count: u32,
    pub(crate) last: Option<Error>,
}

impl Trouble {
    /// When to ask again, or the error if it is final or has gone on too long.
    pub(crate) fn pause(&mut self, error: Error, request: &Request<'_>, now: Moment) -> Result<Moment> {
        let since = *self.since.get_or_insert(now);
        self.count += 1;
        // Without a waiting time a few quick repeats settle a lost reply; more would be waiting.
        let patience = if request.join { now < since + request.client.outage } else { self.count < 4 };
        if !error.is_transient() || !patience {
            return Err(error);
        }
        tracing::debug!(%error, "the engine failed, asking again");
        self.last = Some(error);
        Ok(now + Duration::from_millis(5 << self.count.min(8)))
    }
}

/// Returns why a place in line is given up, if it cannot be renewed. The error is of the kind that the engine gave.
pub(crate) fn stranded(life: &Life) -> Option<Error> {
    let why = life.why_stranded()?;
    let error = Error::new(why.kind, "the place in line could not be renewed; check the engine");
    Some(error.transient(why.transient).because(why.why.to_string()))
}
