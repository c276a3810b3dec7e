//! What a function over locks needs of the engine.

use crate::backend::capabilities::Tokens;
use crate::client::Client;
use crate::error::Result;

/// What a function that is built of locks needs of the engine: see [`Client::require`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Claims can be [looked at](crate::Capabilities::inspect).
    Inspect,
    /// Leases can be [detached](crate::Capabilities::detach).
    Detach,
    /// [Tokens](crate::Capabilities::tokens) are of this class at least.
    Tokens(Tokens),
}

impl Client {
    /// Refuses an engine that lacks `need`, so that a function built of locks fails when it is made and not when it is used. No I/O.
    /// The modes of locks need no check: the client refuses such a lock itself.
    ///
    /// # Errors
    /// [`is_unsupported`](crate::Error::is_unsupported). It names the engine, or the policy of the [layer](crate::Layer) that takes the
    /// capability away.
    pub fn require(&self, need: Need) -> Result<()> {
        match need {
            Need::Inspect => self.client.require(self.client.capabilities.inspect, "way to inspect locks"),
            Need::Detach => self.client.require_detach(),
            Need::Tokens(least) => self.client.check_tokens(least),
        }
    }
}
