//! Repeated looks at a resource: a latch and a barrier wait for a state in which no claim can queue.

use std::time::Duration;

use crate::client::handle::Handle;
use crate::client::shared::ClientShared;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::Info;
use crate::time::Moment;

/// The pause between two looks, unless the user gives another one.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// The shortest pause: an engine that answers on the spot gives the thread to other tasks in pauses alone.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

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
        Looks { client, interval: interval.max(SHORTEST), until, failing: None }
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
            rest(self.client, (now + self.interval).min(self.until)).await?;
        }
    }

    /// Waits until the next look. `false`: the waiting time is over.
    pub(super) async fn pause(&self) -> Result<bool> {
        let clock = self.client.runtime.clock();
        let now = clock.now();
        if now >= self.until {
            return Ok(false);
        }
        rest(self.client, (now + self.interval).min(self.until)).await.map(|()| true)
    }

    /// Returns how much of the waiting time is left.
    pub(super) fn left(&self) -> Duration {
        self.until.since(self.client.runtime.clock().now())
    }
}

/// Waits until then.
///
/// # Errors
/// [`is_closed`](Error::is_closed) as soon as the client is closed.
pub(super) async fn rest(client: &ClientShared, until: Moment) -> Result<()> {
    // From here on a close is told, also one that comes before it is first waited for.
    let closing = client.closing.notified();
    client.check_open()?;
    client.runtime.clock().within(until, closing).await;
    // A clock that is stopped does not sleep.
    client.check_open()
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;
    use std::sync::mpsc;

    use super::*;
    use crate::client::Client;
    use crate::memory::Memory;

    /// An engine that answers on the spot never gives the thread to another task.
    #[test]
    fn a_pause_of_zero_lets_other_tasks_run() {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
                let election = locks.election("a").unwrap();
                let mut leaders = election.observe(Duration::ZERO);
                assert_eq!(leaders.next().await.unwrap(), None);
                let (leader, guard) = tokio::join!(leaders.next(), election.campaign().into_future());
                assert_eq!(leader.unwrap().map(|leader| leader.term), Some(guard.unwrap().token()));
                let latch = locks.latch("b", 1).unwrap().every(Duration::ZERO);
                let (waited, counted) =
                    tokio::join!(latch.wait(Duration::from_secs(3600)), latch.count_down());
                waited.and(counted).unwrap();
            });
            done.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(30)).expect("both calls end");
    }
}
