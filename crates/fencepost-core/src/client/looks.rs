//! Repeated looks at a resource.

use std::fmt;
use std::time::Duration;

use crate::client::Client;
use crate::client::shared::ClientShared;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::Info;
use crate::time::Moment;

/// The shortest pause: an engine that answers on the spot gives the thread to other tasks in pauses alone.
const SHORTEST: Duration = Duration::from_millis(1);

/// The looks of one call that waits for a state in which no claim can queue, as a latch does: see [`Client::looks`].
pub struct Looks<'a> {
    client: &'a ClientShared,
    interval: Duration,
    /// When the call's waiting time is over.
    until: Moment,
    /// Since when the engine fails.
    failing: Option<Moment>,
}

impl Client {
    /// Begins a call that looks at resources each `interval`, which is 1 ms at least, for at most `limit`.
    pub fn looks(&self, interval: Duration, limit: Duration) -> Looks<'_> {
        let until = self.client.runtime.clock().now() + limit;
        Looks { client: &self.client, interval: interval.max(SHORTEST), until, failing: None }
    }
}

impl Looks<'_> {
    /// Looks at a resource. An engine that fails is asked again for the client's [outage](crate::ClientBuilder::outage), within the
    /// waiting time.
    ///
    /// # Errors
    /// Errors of the engine, and [`is_closed`](Error::is_closed) as soon as the client is closed.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn look(&mut self, name: &Name) -> Result<Info> {
        let clock = self.client.runtime.clock();
        loop {
            self.client.check_open()?;
            let until = self.until.max(clock.now() + self.client.attempt_timeout);
            // Dropped here or below, it has only read.
            let error = match clock.within(until, self.client.look(name)).await {
                Some(Ok(info)) => {
                    self.failing = None;
                    return Ok(info);
                }
                Some(Err(error)) => error,
                None => Error::new(ErrorKind::Unreachable, Error::NO_ANSWER).of(name.clone()),
            };
            let now = clock.now();
            let since = *self.failing.get_or_insert(now);
            if !error.is_transient() || now >= since + self.client.outage || now >= self.until {
                return Err(error.on(self.client.engine()));
            }
            self.client.sleep_until((now + self.interval).min(self.until)).await?;
        }
    }

    /// Waits until the next look. `false`: the waiting time is over.
    ///
    /// # Errors
    /// [`is_closed`](Error::is_closed) as soon as the client is closed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn pause(&self) -> Result<bool> {
        let clock = self.client.runtime.clock();
        let now = clock.now();
        if now >= self.until {
            return Ok(false);
        }
        self.client.sleep_until((now + self.interval).min(self.until)).await.map(|()| true)
    }

    /// Returns how much of the waiting time is left.
    pub fn left(&self) -> Duration {
        self.until.since(self.client.runtime.clock().now())
    }
}

/// Shows the time that is left.
impl fmt::Debug for Looks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looks").field("interval", &self.interval).field("left", &self.left()).finish()
    }
}
