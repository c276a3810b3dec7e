//! The lock service of the demo `steps`, as tutorials build it: each step closes the hole of the step before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::Client;
use redis::aio::MultiplexedConnection;
use tokio::time::{sleep, timeout};

use crate::server::{command, connect, script};
use crate::stage::Failure;

/// How often a waiter polls.
const POLL: Duration = Duration::from_millis(5);

/// How far the service is built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// `SETNX`, `DEL`.
    SetNx,
    /// `SET NX PX`, `DEL`.
    Expire,
    /// The same, and a script deletes the owner's own lock alone.
    OwnerCheck,
    /// A hash that counts the entries of its owner.
    Reentrant,
    /// The same, and its holder renews the lease, and stops when that is lost.
    Watchdog,
    /// The same, and a release wakes the waiters.
    PubSub,
}

const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const ENTER: &str =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
end
return 0";
const LEAVE: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 1 end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '' then redis.call('PUBLISH', ARGV[2], 'free') end
return 1";
const RENEW: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// The channel of the last step.
const FREE: &str = "lock:free";
/// The name of the lock.
const LOCK: &str = "lock";

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Service {
    step: Step,
    lease: Duration,
    client: Client,
    connection: MultiplexedConnection,
    tries: Arc<AtomicU64>,
}

impl Service {
    pub(crate) async fn open(url: &str, step: Step, lease: Duration) -> Result<Service, Failure> {
        let client = Client::open(url)?;
        let connection = connect(&client).await?;
        Ok(Service { step, lease, client, connection, tries: Arc::default() })
    }

    /// How often this client has asked for the lock.
    pub(crate) fn tries(&self) -> u64 {
        self.tries.load(Ordering::Relaxed)
    }

    pub(crate) fn step(&self) -> Step {
        self.step
    }

    /// The same with another lease.
    pub(crate) fn with_lease(&self, lease: Duration) -> Service {
        Service { lease, ..self.clone() }
    }

    /// Asks once. If it gets the lock, returns until when it holds on the owner's clock.
    pub(crate) async fn try_lock(&self, owner: &str) -> Result<Option<Instant>, Failure> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        // The lease begins at the server later than this.
        let sent = Instant::now();
        let lease = self.lease.as_millis().to_string();
        let mut connection = self.connection.clone();
        let has_it = match self.step {
            Step::SetNx => command(&["SETNX", LOCK, owner]).query_async(&mut connection).await?,
            Step::Expire | Step::OwnerCheck => {
                let set = command(&["SET", LOCK, owner, "NX", "PX", &lease]);
                set.query_async::<Option<String>>(&mut connection).await?.is_some()
            }
            _ => script(&connection, ENTER, LOCK, &[owner, &lease]).await?,
        };
        Ok(has_it.then(|| sent + self.lease))
    }

    /// Waits for the lock. `None`: it was not free in time.
    pub(crate) async fn lock(&self, owner: &str, wait: Duration) -> Result<Option<Instant>, Failure> {
        let until = Instant::now() + wait;
        let mut releases = None;
        if self.step == Step::PubSub {
            // The subscription comes first: a release between a refusal and it would be missed.
            let mut subscription = self.client.get_async_pubsub().await?;
            subscription.subscribe(FREE).await?;
            releases = Some(subscription.into_on_message());
        }
        loop {
            if let Some(held) = self.try_lock(owner).await? {
                return Ok(Some(held));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            match &mut releases {
                None => sleep(POLL).await,
                // A holder that has died publishes nothing, and its lease ends.
                Some(releases) => drop(timeout(4 * self.lease, releases.next()).await),
            }
        }
    }

    pub(crate) async fn unlock(&self, owner: &str) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        let channel = if self.step == Step::PubSub { FREE } else { "" };
        match self.step {
            Step::SetNx | Step::Expire => command(&["DEL", LOCK]).query_async::<i64>(&mut connection).await?,
            Step::OwnerCheck => script(&connection, UNLOCK, LOCK, &[owner]).await?,
            _ => script(&connection, LEAVE, LOCK, &[owner, channel]).await?,
        };
        Ok(())
    }

    /// Works for this time. From the watchdog on the lease is renewed meanwhile. Calls `note` with the end of each lease. Returns whether
    /// the work is done: it is given up when the lease is lost.
    pub(crate) async fn work(
        &self,
        owner: &str,
        time: Duration,
        note: impl Fn(Instant),
    ) -> Result<bool, Failure> {
        if self.step < Step::Watchdog {
            sleep(time).await;
            return Ok(true);
        }
        let lease = self.lease.as_millis().to_string();
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            sleep(left.min(self.lease / 3)).await;
            let sent = Instant::now();
            if !script::<bool>(&self.connection, RENEW, LOCK, &[owner, &lease]).await? {
                return Ok(false);
            }
            note(sent + self.lease);
            if sent >= end {
                return Ok(true);
            }
        }
    }
}
