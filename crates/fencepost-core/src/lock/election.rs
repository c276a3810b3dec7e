//! One leader among many candidates.

use std::time::Duration;

use crate::acquire::Acquire;
use crate::acquire::options::Single;
use crate::backend::admission::Mode;
use crate::backend::capabilities::Tokens;
use crate::client::handle::Handle;
use crate::error::Result;
use crate::lock::bug::planted;
use crate::lock::polling::{SHORTEST, rest};
use crate::name::Name;
use crate::operator::holder::HolderInfo;
use crate::token::Token;

/// An election: candidates campaign, one of them leads, and everybody can see who.
///
/// # What is guaranteed
/// - One leader at a time, with the guarantees of [`Mutex`](crate::Mutex). Candidates lead in the order of their campaigns where the
///   engine is [fair](crate::Capabilities::fair).
/// - The guard's token is the term. It grows with each leader, so a resource that checks it refuses the writes of a leader that
///   was stopped.
///
/// # What is not
/// - An observer sees a leader up to one interval late, and may miss one that led for less than that.
/// - The leader that an observer sees may have lost the lock a moment ago. Only the token tells.
#[derive(Clone, Debug)]
#[doc(alias("LeaderLatch", "LeaderSelector", "NewElection"))]
pub struct Election {
    client: Handle,
    name: Name,
}

/// The leader of an [`Election`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The term: the fencing token of its grant.
    pub term: Token,
    /// The holder.
    pub holder: HolderInfo,
    /// The value that it published: the [`reason`](crate::Acquire::reason) of its campaign, such as its address.
    pub value: Option<String>,
}

impl Election {
    pub(crate) fn new(client: Handle, name: Name) -> Result<Election> {
        client.check_tokens(Tokens::ClockBounded)?;
        client.require(client.capabilities.inspect, "way to inspect locks")?;
        Ok(Election { client, name })
    }

    /// The election's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Campaigns: waits until this candidate leads. The [token](crate::GuardView::token) of the guard is the term, its release resigns, and
    /// [`reason`](Acquire::reason) publishes a value. Errors and cancel safety are those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let election = locks.election("scheduler")?;
    /// let guard = election.campaign().reason("http://10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("this candidate leads");
    /// assert_eq!((leader.term, leader.value.as_deref()), (guard.token(), Some("http://10.0.0.7:8080")));
    /// guard.release().await?; // resigns
    /// assert_eq!(election.leader().await?, None);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn campaign(&self) -> Acquire<Single<'_>> {
        Acquire::new(&self.client, &self.name, Mode::Exclusive)
    }

    /// Returns the present leader.
    ///
    /// # Errors
    /// Errors of the engine.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let info = self.client.look(&self.name).await?;
        let leads = |claim: &crate::operator::holder::ClaimInfo| {
            Some(Leader { term: claim.token?, holder: claim.holder.clone(), value: claim.reason.clone() })
        };
        let mut leader = info.holders().find(|claim| claim.mode == Mode::Exclusive).and_then(leads);
        if let (true, Some(leader), Some(last)) =
            (planted!(LastCandidateLeads), &mut leader, info.claims.last())
        {
            leader.value = last.reason.clone();
        }
        Ok(leader)
    }

    /// Observes the leaders from now on, by a look each `interval`, which is 1 ms at least.
    pub fn observe(&self, interval: Duration) -> Leaders<'_> {
        Leaders { election: self, interval: interval.max(SHORTEST), seen: None }
    }
}

/// The leaders of an [`Election`], one after the other: see [`Election::observe`].
#[derive(Debug)]
pub struct Leaders<'a> {
    election: &'a Election,
    interval: Duration,
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
        let clock = self.election.client.runtime.clock();
        loop {
            let leader = self.election.leader().await?;
            let term = leader.as_ref().map(|leader| leader.term);
            if self.seen != Some(term) {
                self.seen = Some(term);
                return Ok(leader);
            }
            rest(&self.election.client, clock.now() + self.interval).await?;
        }
    }
}
