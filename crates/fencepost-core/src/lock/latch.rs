//! A count that many wait for.

use std::time::Duration;

use crate::acquire::Outcome;
use crate::acquire::options::Single;
use crate::backend::admission::Mode;
use crate::client::handle::Handle;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::bug::planted;
use crate::lock::polling::{INTERVAL, Looks};
use crate::name::Name;
use crate::operator::info::Info;

/// How long a count is kept, unless the user says otherwise.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// A latch: it opens once it has been counted down `count` times, and others wait until it is open.
///
/// Each count is a permit of the resource `NAME#latchG`, held by a detached lease, where `G` is the
/// [generation](Latch::generation). So it outlives the process that counted.
///
/// # What is guaranteed
/// - The latch never opens before `count` calls of [`count_down`](Latch::count_down) have begun.
/// - A process that is killed in `count_down` has counted or not. It never closes the latch again, and its place is free at
///   the end of its lease.
/// - A call that waits costs one look at the resource per [interval](Latch::every), and queues nowhere.
///
/// # What is not
/// - A count is forgotten `keep` after it was made: see [`keep`](Latch::keep). From then on the latch is closed.
/// - A waiter sees the last count up to one interval late.
/// - All users of a name and generation give the same `count`.
#[derive(Clone, Debug)]
#[doc(alias("CountDownLatch", "RCountDownLatch", "countDown"))]
pub struct Latch {
    client: Handle,
    name: Name,
    /// The resource whose permits are the counts.
    counts: Name,
    count: u32,
    keep: Duration,
    interval: Duration,
}

impl Latch {
    /// The most counts.
    pub const MAX_COUNT: u32 = 4096;

    pub(crate) fn new(client: Handle, name: Name, count: u32) -> Result<Latch> {
        if count == 0 || count > Self::MAX_COUNT {
            return Err(Error::invalid("a latch has 1 to 4096 counts; give another number").of(name));
        }
        client.check_mode(Mode::Permits { n: 1, of: count })?;
        client.require_detach()?;
        client.require(client.capabilities.inspect, "way to inspect locks")?;
        // There is room for each generation.
        counts_of(&name, u64::MAX)?;
        let counts = counts_of(&name, 0)?;
        let keep = KEEP.min(client.capabilities.max_ttl);
        Ok(Latch { client, name, counts, count, keep, interval: INTERVAL })
    }

    /// The latch's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the latch of another generation: a latch of its own, which nobody has counted down yet. The first one is 0. The users
    /// agree on the number, for example that of a batch.
    #[must_use]
    pub fn generation(&self, generation: u64) -> Latch {
        let counts = counts_of(&self.name, generation).expect("the longest name was checked");
        Latch { counts, ..self.clone() }
    }

    /// Sets how long each count is kept, by default for 1 day. It is a lease of the engine and has its limits.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Latch {
        self.keep = keep;
        self
    }

    /// Sets the pause between two looks of a call that waits, by default 100 ms.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Latch {
        self.interval = interval;
        self
    }

    /// Counts down by one. A latch that is open stays as it is.
    ///
    /// It takes two requests. If all places are taken, but some by calls that are under way or were killed, it waits for at most the
    /// client's lease (`ttl`), with two requests per [interval](Latch::every).
    ///
    /// # Errors
    /// As for [`Mutex::try_lock`](crate::Mutex::try_lock). [`is_timeout`](Error::is_timeout) if the places are still taken. After an
    /// error with an unknown [effect](Error::effect) it may have counted: look at [`remaining`](Latch::remaining) before a second call.
    ///
    /// # Cancel safety
    /// Dropped midway, it has counted, does so in the background, or does not count. A place that does not count is given back.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let loaded = locks.latch("shards loaded", 2)?;
    /// loaded.count_down().await?;
    /// assert_eq!(loaded.remaining().await?, 1);
    /// loaded.count_down().await?; // another process, usually
    /// loaded.wait(Duration::from_secs(60)).await?;
    ///
    /// let next = loaded.generation(1); // closed again
    /// assert_eq!(next.remaining().await?, 2);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn count_down(&self) -> Result<()> {
        self.client.check_ttl(self.keep)?;
        let mode = Mode::Permits { n: 1, of: self.count };
        // It is not renewed: a place of a process that dies here ends with this lease.
        let mut request = Single::new(&self.client, &self.counts, mode, false);
        (request.options.fixed, request.history) = (true, None);
        let mut looks = Looks::new(&self.client, self.interval, self.client.ttl);
        loop {
            // Dropped here, the place is given back. Only a detached one counts.
            match request.clone().run().await? {
                Outcome::Granted(guard) => return guard.leave_mark(self.keep).await,
                Outcome::Busy => {}
                Outcome::Timeout(error) => return Err(error),
            }
            if self.counted(&mut looks).await? >= self.count {
                return Ok(());
            }
            if !looks.pause().await? {
                let message =
                    "other counts are under way, or were killed, and their leases last; count again later";
                return Err(self.timeout(message.to_owned()));
            }
        }
    }

    /// Waits until the latch is open, for at most `limit`. It looks at once, so an open latch costs one request.
    ///
    /// # Errors
    /// [`is_timeout`](Error::is_timeout) if it is closed after `limit`. Errors of the engine, once they last for the client's
    /// [`outage`](crate::ClientBuilder::outage).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    #[doc(alias("await"))]
    pub async fn wait(&self, limit: Duration) -> Result<()> {
        let mut looks = Looks::new(&self.client, self.interval, limit);
        loop {
            let counted = self.counted(&mut looks).await?;
            if counted + u32::from(planted!(LatchOpensEarly)) >= self.count {
                return Ok(());
            }
            if !looks.pause().await? {
                let message = format!(
                    "the latch is still closed after {limit:?}: {counted} of {} counted down",
                    self.count
                );
                return Err(self.timeout(message));
            }
        }
    }

    /// Returns how many counts are missing. Zero: the latch is open.
    ///
    /// # Errors
    /// Errors of the engine.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn remaining(&self) -> Result<u32> {
        let counted = counted(&self.client.look(&self.counts).await?);
        Ok(self.count.saturating_sub(counted))
    }

    async fn counted(&self, looks: &mut Looks<'_>) -> Result<u32> {
        Ok(counted(&looks.look(&self.counts).await?))
    }

    fn timeout(&self, message: String) -> Error {
        Error::new(ErrorKind::Timeout, message)
            .transient(true)
            .of(self.counts.clone())
            .on(self.client.engine())
    }
}

fn counts_of(name: &Name, generation: u64) -> Result<Name> {
    Name::new(&format!("{name}#latch{generation}"))
}

/// A place that is not detached is of a call under way, which may still fail.
fn counted(info: &Info) -> u32 {
    let counts = info.holders().filter(|claim| claim.detached).map(|claim| match claim.mode {
        Mode::Permits { n, .. } => n,
        Mode::Exclusive | Mode::Shared => 0,
    });
    counts.sum()
}
