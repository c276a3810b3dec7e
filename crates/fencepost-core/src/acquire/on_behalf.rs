//! Options of a request that a service makes on behalf of another program.

use crate::acquire::TryAcquire;

/// The options that a service needs, on a tuple struct around a request.
macro_rules! on_behalf {
    ($type:ident) => {
        impl $type<'_> {
            /// Makes the claim with this id, so that a program that knows the id can find the grant: see
            /// [`DetachedLease::of`](crate::DetachedLease::of). One claim has an id, never two. So a claim whose place or grant is gone fails
            /// ([`is_lost`](crate::Error::is_lost)) and does not queue again.
            pub fn claim_id(mut self, id: $crate::backend::claim_id::ClaimId) -> Self {
                self.0.id = Some(id);
                self
            }

            /// Calls `tell` when the claim waits, at the engine or behind others of this client, and again after each later attempt that
            /// finds it waiting.
            pub fn on_queued(mut self, tell: impl Fn() + Send + Sync + 'static) -> Self {
                self.0.queued = Some(std::sync::Arc::new(tell));
                self
            }

            /// Shows this holder to operators, for a service that asks on behalf of another process, and the longest hold and wait that the
            /// process itself keeps. The holder's label has up to [`HolderInfo::MAX_BYTES`](crate::HolderInfo::MAX_BYTES).
            pub fn on_behalf_of(
                mut self,
                holder: $crate::operator::holder::HolderInfo,
                max_hold: Option<std::time::Duration>,
                max_wait: Option<std::time::Duration>,
            ) -> Self {
                self.0.options.holder = Some(std::sync::Arc::new(holder));
                self.0.shown_limits = Some((max_hold, max_wait));
                self
            }
        }
    };
}
pub(crate) use on_behalf;

on_behalf!(TryAcquire);
