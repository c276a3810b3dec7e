//! One leader among many candidates.

use std::time::Duration;

use fencepost_core::request::Single;
use fencepost_core::{
    Acquire, ClaimInfo, Client, HolderInfo, Looks, Mode, Mutex, Name, Need, Result, Token, Tokens,
};

/// An election: candidates campaign, one of them leads, and everybody can see who.
///
/// # What is guaranteed
/// - One leader at a time, with the guarantees of [`Mutex`]. Candidates lead in the order of their campaigns where the
///   engine is [fair](fencepost_core::Capabilities::fair).
/// - The guard's token is the term. It grows with each leader, so a resource that checks it refuses the writes of a leader that
///   was stopped.
///
/// # What is not
/// - An observer sees a leader up to one interval late, and may miss one that led for less than that.
/// - The leader that an observer sees may have lost the lock a moment ago. Only the token tells.
#[derive(Clone, Debug)]
#[doc(alias("LeaderLatch", "LeaderSelector", "NewElection"))]
pub struct Election {
    client: Client,
    mutex: Mutex,
}

/// The leader of an [`Election`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The term: the fencing token of its grant.
    pub term: Token,
    /// The holder.
    pub holder: HolderInfo,
    /// The value that it published: the [`reason`](fencepost_core::Acquire::reason) of its campaign, such as its address.
    pub value: Option<String>,
}

impl Election {
    /// Makes an election of one leader. No I/O.
    ///
    /// # Errors
    /// [`is_invalid`](fencepost_core::Error::is_invalid) for a bad name, [`is_unsupported`](fencepost_core::Error::is_unsupported) if the
    /// engine has no [tokens](fencepost_core::Capabilities::tokens) or nobody can [look](fencepost_core::Capabilities::inspect).
    pub fn new(client: &Client, name: &str) -> Result<Election> {
        let mutex = client.mutex(name)?;
        client.require(Need::Tokens(Tokens::ClockBounded))?;
        client.require(Need::Inspect)?;
        Ok(Election { client: client.clone(), mutex })
    }

    /// The election's name.
    pub fn name(&self) -> &Name {
        self.mutex.name()
    }

    /// Campaigns: waits until this candidate leads. The [token](fencepost_core::GuardView::token) of the guard is the term, its release resigns, and
    /// [`reason`](Acquire::reason) publishes a value. Errors and cancel safety are those of [`Mutex::lock`](fencepost_core::Mutex::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let election = fencepost_recipes::Election::new(&locks, "scheduler")?;
    /// let guard = election.campaign().reason("http://10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("this candidate leads");
    /// assert_eq!((leader.term, leader.value.as_deref()), (guard.token(), Some("http://10.0.0.7:8080")));
    /// guard.release().await?; // resigns
    /// assert_eq!(election.leader().await?, None);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn campaign(&self) -> Acquire<Single<'_>> {
        self.mutex.lock()
    }

    /// Returns the present leader. `None`: nobody is known to lead.
    ///
    /// # Errors
    /// Errors of the engine.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let info = self.client.look(self.name()).await?;
        let leads = |claim: &ClaimInfo| {
            Some(Leader { term: claim.token?, holder: claim.holder.clone(), value: claim.reason.clone() })
        };
        Ok(info.confirmed_holders().find(|claim| claim.mode == Mode::Exclusive).and_then(leads))
    }

    /// Observes the leaders from now on, by a look each `interval`, which is 1 ms at least.
    pub fn observe(&self, interval: Duration) -> Leaders<'_> {
        Leaders { election: self, looks: self.client.looks(interval, Duration::MAX), seen: None }
    }
}

/// The leaders of an [`Election`], one after the other: see [`Election::observe`].
#[derive(Debug)]
pub struct Leaders<'a> {
    election: &'a Election,
    looks: Looks<'a>,
    /// The answer of the last call.
    seen: Option<Option<Token>>,
}

impl Leaders<'_> {
    /// Waits until the leader is another one than the last call returned, and returns it. `None`: nobody leads. The first call returns
    /// at once.
    ///
    /// # Errors
    /// Errors of the engine. Call it again to go on.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let leader = self.election.leader().await?;
            let term = leader.as_ref().map(|leader| leader.term);
            if self.seen != Some(term) {
                self.seen = Some(term);
                return Ok(leader);
            }
            self.looks.pause().await?;
        }
    }
}
