//! A count that many wait for.

use std::time::Duration;

use fencepost_core::{Client, Error, ErrorKind, Info, Looks, Mode, Name, Need, Result, Semaphore};

use crate::{INTERVAL, KEEP};

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
    client: Client,
    name: Name,
    /// Its permits are the counts.
    counts: Semaphore,
    count: u32,
    keep: Duration,
    interval: Duration,
}

impl Latch {
    /// The most counts.
    pub const MAX_COUNT: u32 = 4096;

    /// Makes a latch that opens once it has been counted down `count` times. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, one that leaves no room for the generation, or no count or more than
    /// [`MAX_COUNT`](Latch::MAX_COUNT). [`is_unsupported`](Error::is_unsupported) if the engine has no permits or no
    /// [detached leases](fencepost_core::Capabilities::detach), or nobody can [look](fencepost_core::Capabilities::inspect).
    pub fn new(client: &Client, name: &str, count: u32) -> Result<Latch> {
        let name = Name::new(name)?;
        if count == 0 || count > Self::MAX_COUNT {
            return Err(Error::invalid("a latch has 1 to 4096 counts; give another number").of(name));
        }
        let counts = client.semaphore(&counts_of(&name, 0), count)?;
        client.require(Need::Detach)?;
        client.require(Need::Inspect)?;
        // There is room for each generation.
        Name::new(&counts_of(&name, u64::MAX))?;
        let keep = KEEP.min(client.capabilities().max_ttl);
        Ok(Latch { client: client.clone(), name, counts, count, keep, interval: INTERVAL })
    }

    /// The latch's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the latch of another generation: a latch of its own, which nobody has counted down yet. The first one is 0. The users
    /// agree on the number, for example that of a batch.
    #[must_use]
    pub fn generation(&self, generation: u64) -> Latch {
        let counts = self.client.semaphore(&counts_of(&self.name, generation), self.count);
        let counts = counts.expect("the longest name was checked");
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
    /// As for [`Mutex::try_lock`](fencepost_core::Mutex::try_lock). [`is_timeout`](Error::is_timeout) if the places are still taken. After an
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
    /// let loaded = fencepost_recipes::Latch::new(&locks, "shards loaded", 2)?;
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
        let mut looks = self.client.looks(self.interval, self.client.ttl());
        loop {
            // Dropped here, the place is given back. Only a detached one counts.
            // It is not renewed: a place of a process that dies here ends with this lease.
            if let Some(guard) = self.counts.try_acquire().no_renewal().without_run().await? {
                return guard.leave_mark(self.keep).await;
            }
            if self.counted(&mut looks).await? >= self.count {
                return Ok(());
            }
            if !looks.pause().await? {
                let message =
                    "other counts are under way, or were killed, and their leases last; count again later";
                return Err(self.error(ErrorKind::Timeout, message.to_owned()));
            }
        }
    }

    /// Waits until the latch is open, for at most `limit`. It looks at once, so an open latch costs one request.
    ///
    /// # Errors
    /// [`is_timeout`](Error::is_timeout) if it is closed after `limit`. Errors of the engine, once they last for the client's
    /// [`outage`](fencepost_core::ClientBuilder::outage).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    #[doc(alias("await"))]
    pub async fn wait(&self, limit: Duration) -> Result<()> {
        let mut looks = self.client.looks(self.interval, limit);
        loop {
            let counted = self.counted(&mut looks).await?;
            if counted >= self.count {
                return Ok(());
            }
            if !looks.pause().await? {
                let message = format!(
                    "the latch is still closed after {limit:?}: {counted} of {} counted down",
                    self.count
                );
                return Err(self.error(ErrorKind::Timeout, message));
            }
        }
    }

    /// Returns how many counts are missing. Zero: the latch is open.
    ///
    /// # Errors
    /// Errors of the engine. [`is_unreachable`](Error::is_unreachable) if it is not known whether a call has counted, because nodes of a quorum
    /// do not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn remaining(&self) -> Result<u32> {
        let info = self.client.look(self.counts.name()).await?;
        // A caller that does not know whether it has counted would count twice.
        if info.holders().any(|claim| claim.detached && claim.unconfirmed) {
            let message = "some counts are not confirmed by enough nodes; ask again once they answer";
            return Err(self.error(ErrorKind::Unreachable, message.to_owned()));
        }
        Ok(self.count.saturating_sub(counted(&info)))
    }

    async fn counted(&self, looks: &mut Looks<'_>) -> Result<u32> {
        Ok(counted(&looks.look(self.counts.name()).await?))
    }

    fn error(&self, kind: ErrorKind, message: String) -> Error {
        Error::new(kind, message)
            .transient(true)
            .of(self.counts.name().clone())
            .on(self.client.capabilities().engine)
    }
}

fn counts_of(name: &Name, generation: u64) -> String {
    format!("{name}#latch{generation}")
}

/// A place that is not detached is of a call under way, which may still fail.
fn counted(info: &Info) -> u32 {
    let counts = info.confirmed_holders().filter(|claim| claim.detached).map(|claim| match claim.mode {
        Mode::Permits { n, .. } => n,
        Mode::Exclusive | Mode::Shared => 0,
    });
    counts.sum()
}
