//! A group that begins and ends its work together.

use std::time::Duration;

use fencepost_core::{
    ClaimInfo, Client, Error, ErrorKind, Guard, Looks, Mutex, Name, Need, Result, Semaphore, Token, Tokens,
};

use crate::{INTERVAL, KEEP};

/// A double barrier: `members` processes enter together, work, and leave together.
///
/// A member inside holds a permit of the resource `NAME#barrierG`, where `G` is the [generation](Barrier::generation). Once all
/// permits are held, a member marks the generation as open, by a detached lease on `NAME#barrierG.open`.
///
/// # What is guaranteed
/// - [`enter`](Barrier::enter) lets nobody in before all members were inside at one moment.
/// - [`leave`](Inside::leave) lets nobody go before each member has left, or its lease has ended. So a member that was killed holds up
///   the others for its lease at most.
/// - On a quorum, a member is inside for `enter` if enough nodes of all say so, and for `leave` if too few say that it is not. So a node
///   that is missing may hold up both calls, but lets nobody through early.
/// - A generation is used once: a process that comes later, or is one too many, is refused.
/// - A call that waits costs two looks per [interval](Barrier::every) to enter, and one to leave. It queues only where more than
///   `members` processes enter.
///
/// # What is not
/// - A member that was paused past its lease may work on after the others have left. Its [guard](Inside::guard) says that it is lost.
/// - Members see a change up to one interval late.
/// - All users of a name and generation give the same number of members.
#[derive(Clone, Debug)]
#[doc(alias("DistributedDoubleBarrier", "DistributedBarrier", "CyclicBarrier"))]
pub struct Barrier {
    client: Client,
    name: Name,
    /// The members inside hold its permits.
    inside: Semaphore,
    /// Is held once all were inside.
    open: Mutex,
    members: u32,
    keep: Duration,
    interval: Duration,
}

/// A member inside a [`Barrier`].
///
/// # Drop
/// Leaves without waiting for the others, as the drop of a [`Guard`] does.
#[derive(Debug)]
#[must_use = "the member leaves when this is dropped"]
pub struct Inside {
    guard: Guard,
    barrier: Barrier,
    /// The greatest token of the members.
    last: Token,
}

impl Barrier {
    /// The most members.
    pub const MAX_MEMBERS: u32 = 4096;

    /// Makes a double barrier for `members` processes. No I/O. All users of a name give the same number.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a bad name, one that leaves no room for the generation, or no member or more than
    /// [`MAX_MEMBERS`](Barrier::MAX_MEMBERS). [`is_unsupported`](Error::is_unsupported) if the engine has no permits, no
    /// [detached leases](fencepost_core::Capabilities::detach) or no [tokens](fencepost_core::Capabilities::tokens), or nobody can
    /// [look](fencepost_core::Capabilities::inspect).
    pub fn new(client: &Client, name: &str, members: u32) -> Result<Barrier> {
        let name = Name::new(name)?;
        if members == 0 || members > Self::MAX_MEMBERS {
            return Err(Error::invalid("a barrier has 1 to 4096 members; give another number").of(name));
        }
        let (inside, open) = locks_of(client, &name, 0, members)?;
        client.require(Need::Detach)?;
        client.require(Need::Inspect)?;
        client.require(Need::Tokens(Tokens::ClockBounded))?;
        // There is room for each generation.
        locks_of(client, &name, u64::MAX, members)?;
        let keep = KEEP.min(client.capabilities().max_ttl);
        Ok(Barrier { client: client.clone(), name, inside, open, members, keep, interval: INTERVAL })
    }

    /// The barrier's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the barrier of another generation, which nobody has entered yet. The first one is 0. The members agree on the number: each
    /// counts its rounds, for example.
    #[must_use]
    pub fn generation(&self, generation: u64) -> Barrier {
        let locks = locks_of(&self.client, &self.name, generation, self.members);
        let (inside, open) = locks.expect("the longest name was checked");
        Barrier { inside, open, ..self.clone() }
    }

    /// Sets how long a generation that has opened is refused to others, by default for 1 day. It is a lease of the engine and has its
    /// limits.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Barrier {
        self.keep = keep;
        self
    }

    /// Sets the pause between two looks of a call that waits, by default 100 ms.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Barrier {
        self.interval = interval;
        self
    }

    /// Enters: waits until all members are inside, for at most `limit`.
    ///
    /// # Errors
    /// As for [`Mutex::lock`](fencepost_core::Mutex::lock). [`is_timeout`](Error::is_timeout) if members are missing after `limit`: this one is
    /// outside again. [`is_mismatch`](Error::is_mismatch) if the generation has opened without this member.
    /// [`is_lost`](Error::is_lost) if its lease ended while it waited.
    ///
    /// # Cancel safety
    /// Dropped midway, the member is outside. The others may have seen it inside, and go on without it.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// use std::time::Duration;
    ///
    /// let limit = Duration::from_secs(60);
    /// let batch = fencepost_recipes::Barrier::new(&locks, "batch", 2)?;
    /// let member = async {
    ///     let inside = batch.enter(limit).await?;
    ///     // … the work of this member …
    ///     inside.leave(limit).await
    /// };
    /// let other = async { batch.enter(limit).await?.leave(limit).await }; // another process, usually
    /// tokio::try_join!(member, other)?;
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub async fn enter(&self, limit: Duration) -> Result<Inside> {
        self.client.check_ttl(self.keep)?;
        let mut looks = self.client.looks(self.interval, limit);
        if self.opened(&mut looks).await?.is_some() {
            return Err(self.closed());
        }
        // If the time ends, others are inside. All of them are members, or wait for some.
        let guard = self.inside.acquire().wait(looks.left()).without_run().await?;
        // Dropped or failed below, the guard is given back.
        loop {
            guard.ensure_held()?;
            if let Some(last) = self.opened(&mut looks).await? {
                if guard.token() > last {
                    return Err(self.closed());
                }
                // A member whose lease ended before this look may not be one of those that were inside.
                guard.ensure_held()?;
                return Ok(Inside { guard, barrier: self.clone(), last });
            }
            let tokens = self.look_inside(&mut looks).await?;
            let inside = tokens.len();
            if inside >= self.members as usize && self.mark_open(tokens, &mut looks).await? {
                continue;
            }
            if !looks.pause().await? {
                let message = format!(
                    "the barrier is still closed after {limit:?}: {inside} of {} members are inside",
                    self.members
                );
                let error = Error::new(ErrorKind::Timeout, message).transient(true);
                return Err(error.of(self.inside.name().clone()).on(self.client.capabilities().engine));
            }
        }
    }

    /// Returns the tokens of the members that are surely inside, the greatest last.
    async fn look_inside(&self, looks: &mut Looks<'_>) -> Result<Vec<Token>> {
        let info = looks.look(self.inside.name()).await?;
        let mut tokens: Vec<_> = info.confirmed_holders().filter_map(|claim| claim.token).collect();
        tokens.sort_unstable();
        Ok(tokens)
    }

    /// Notes that the members with these tokens were inside at one moment. `false`: one has left meanwhile, or another member notes it now, or
    /// was killed while it did.
    async fn mark_open(&self, tokens: Vec<Token>, looks: &mut Looks<'_>) -> Result<bool> {
        let last = tokens.last().copied().unwrap_or_default();
        // It is not renewed: that of a process that dies here ends with this lease, and another member notes it.
        let request = self.open.try_lock().no_renewal().reason(&last.get().to_string()).without_run();
        let Some(guard) = request.await? else { return Ok(false) };
        // One look may find a member that leaves before another one comes: an engine may read many claims in parts, and the nodes of a quorum
        // answer at different times. Who is there in two looks was inside between them.
        if self.look_inside(looks).await? != tokens {
            return Ok(false);
        }
        guard.leave_mark(self.keep).await.map(|()| true)
    }

    /// Returns the greatest token of the members, if all were inside. A mark that is not detached may still vanish.
    async fn opened(&self, looks: &mut Looks<'_>) -> Result<Option<Token>> {
        let info = looks.look(self.open.name()).await?;
        let mut marks = info.confirmed_holders().filter(|claim| claim.detached);
        Ok(marks.find_map(|claim| claim.reason.as_deref()?.parse().ok()).map(Token::new))
    }

    fn closed(&self) -> Error {
        let message = "this generation has opened without this member; enter another generation";
        Error::new(ErrorKind::Mismatch, message)
            .of(self.inside.name().clone())
            .on(self.client.capabilities().engine)
    }
}

impl Inside {
    /// The guard of this member: it tells whether the member is still known as inside.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Leaves: waits until all members have left or are dead, for at most `limit`.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if this member's lease had ended: the others may have left before. [`is_timeout`](Error::is_timeout)
    /// if a member is inside after `limit`. Errors of the engine, once they last for the client's
    /// [`outage`](fencepost_core::ClientBuilder::outage). The member has left in each case.
    ///
    /// # Cancel safety
    /// Dropped midway, the member leaves without waiting for the others.
    pub async fn leave(self, limit: Duration) -> Result<()> {
        let Inside { guard, barrier, last } = self;
        let mut looks = barrier.client.looks(barrier.interval, limit);
        // A release that is not confirmed goes on in the background. Until then the member is seen inside, by itself, too.
        if let Err(error) = guard.release().await
            && error.is_lost()
        {
            return Err(error);
        }
        loop {
            let info = looks.look(barrier.inside.name()).await?;
            // One that is too many may be here for a moment. One that is not known to be inside may be a member, under another token.
            let is_member =
                |claim: &&ClaimInfo| claim.unconfirmed || claim.token.is_some_and(|token| token <= last);
            let inside = info.holders().filter(is_member).count();
            if inside == 0 {
                return Ok(());
            }
            if !looks.pause().await? {
                let message =
                    format!("the barrier is still closed after {limit:?}: {inside} other members are inside");
                let error = Error::new(ErrorKind::Timeout, message).transient(true);
                let holders = info.holders().cloned().collect();
                return Err(error
                    .held_by(holders)
                    .of(barrier.inside.name().clone())
                    .on(barrier.client.capabilities().engine));
            }
        }
    }
}

fn locks_of(client: &Client, name: &Name, generation: u64, members: u32) -> Result<(Semaphore, Mutex)> {
    let inside = client.semaphore(&format!("{name}#barrier{generation}"), members)?;
    let open = client.mutex(&format!("{}.open", inside.name()))?;
    Ok((inside, open))
}
