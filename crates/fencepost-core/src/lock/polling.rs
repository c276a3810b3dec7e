//! Repeated looks at a resource: a latch and a barrier wait for a state in which no claim can queue.

use std::time::Duration;

use crate::client::handle::Handle;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::Info;
use crate::time::Moment;

/// The pause between two looks, unless the user gives another one.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// The looks of one call that waits.
pub(super) struct Looks<'a> {
    client: &'a Handle,
    interval: Duration,
    /// When the call's waiting time is over.
    until: Moment,
    /// Since when the engine fails.
    failing: Option<Moment>,
}

impl<'a> Looks<'a> {
    pub(super) fn new(client: &'a Handle, interval: Duration, limit: Duration) -> Looks<'a> {
        let until = client.runtime.clock().now() + limit;
        Looks { client, interval, until, failing: None }
    }

    /// Looks at a resource. An engine that fails is asked again for the client's outage, within the waiting time.
    pub(super) async fn look(&mut self, name: &Name) -> Result<Info> {
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
            clock.sleep_until((now + self.interval).min(self.until)).await;
        }
    }

    /// Waits until the next look. `false`: the waiting time is over.
    pub(super) async fn pause(&self) -> Result<bool> {
        let clock = self.client.runtime.clock();
        let now = clock.now();
        if now >= self.until {
            return Ok(false);
        }
        clock.sleep_until((now + self.interval).min(self.until)).await;
        // A clock that is stopped does not sleep.
        self.client.check_open().map(|()| true)
    }

    /// Returns how much of the waiting time is left.
    pub(super) fn left(&self) -> Duration {
        self.until.since(self.client.runtime.clock().now())
    }
}
