//! What keeps grants alive.

use std::sync::Arc;

use crate::backend::claim::Claim;
use crate::backend::reply::Reply;
use crate::error::Result;

/// A claim and the session that keeps it alive. An engine makes it, layers pass it on.
#[derive(Clone)]
pub struct Renewal {
    /// The claim to renew.
    pub claim: Arc<Claim>,
    /// The session that renews it.
    pub session: Arc<dyn Session>,
}

/// The liveness unit of grants: a connection, a session or a lease. When it ends, its grants end.
pub trait Session: Send + Sync {
    /// Returns the id of the unit. Sessions of one id are one unit: their claims are renewed by one round, through one of them. Two units
    /// that core renews for one client never share an id.
    ///
    /// The default is the address of the session, so that each session is a unit of its own. An engine that renews each claim by a
    /// request of its own has a session for each claim, because a round ends with its last answer: a request that hangs would hold up
    /// the next round of all other claims of the session.
    ///
    /// Rounds that are due together begin in the order of the ids. That of addresses differs between runs of a program.
    fn id(&self) -> u64 {
        std::ptr::from_ref(self).cast::<()>().addr() as u64
    }

    /// Renews the claims in one round. Each answer goes to the claim's validity as it arrives: confirmed, waiting, or ended. A
    /// renewal never creates: a claim that the engine no longer knows ends as lost. A claim that is not
    /// [`renewed`](Claim::renewed) comes here while it waits in the queue, and afterwards only when its user extends it: its lease then ends `ttl` after this request at the
    /// earliest. A renewal never shortens a lease, so two renewals may overtake each other.
    ///
    /// # Errors
    /// The round failed, at least for some of the claims, and the missing answers are unknown. A claim is renewed all the same if the round has
    /// moved the time at which it is [due](crate::Validity::due). Core asks for the others again soon.
    ///
    /// # Cancel safety
    /// Core may drop this future. The answers that came by then count.
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>>;
}
