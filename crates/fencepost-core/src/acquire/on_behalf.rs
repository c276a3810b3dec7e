//! Options of a request that a service makes on behalf of another program.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::TryAcquire;
use crate::backend::claim_id::ClaimId;
use crate::operator::holder::HolderInfo;

impl TryAcquire<'_> {
    /// Makes the claim with this id, so that a program that knows the id can find the grant: see [`DetachedLease::of`](crate::DetachedLease::of). One claim has an
    /// id, never two. So a claim whose place or grant is gone fails ([`is_lost`](crate::Error::is_lost)) and does not queue again.
    pub fn claim_id(mut self, id: ClaimId) -> Self {
        self.0.id = Some(id);
        self
    }

    /// Calls `tell` when the claim waits, at the engine or behind others of this client, and again after each later attempt that finds it
    /// waiting.
    pub fn on_queued(mut self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        self.0.queued = Some(Arc::new(tell));
        self
    }

    /// Shows this holder to operators, for a service that asks on behalf of another process, and the longest hold and wait that the process
    /// itself keeps. The holder's label has up to [`HolderInfo::MAX_BYTES`].
    pub fn on_behalf_of(
        mut self,
        holder: HolderInfo,
        max_hold: Option<Duration>,
        max_wait: Option<Duration>,
    ) -> Self {
        self.0.options.holder = Some(Arc::new(holder));
        self.0.shown_limits = Some((max_hold, max_wait));
        self
    }
}
