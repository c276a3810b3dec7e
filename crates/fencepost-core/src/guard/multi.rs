//! Several guards as one.

use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::error::Result;
use crate::guard::Guard;
use crate::name::Name;
use crate::time::Moment;
use crate::token::Token;
use crate::validity::Loss;

/// Several locks that are held together. Lost as soon as one of them is. Dropped, it releases all.
#[must_use = "the locks are released when the guard is dropped"]
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl From<Guard> for MultiGuard {
    fn from(guard: Guard) -> MultiGuard {
        MultiGuard { guards: vec![guard] }
    }
}

impl MultiGuard {
    pub(crate) fn new(guards: Vec<Guard>) -> MultiGuard {
        MultiGuard { guards }
    }

    /// The guards, in the [order](crate::MultiLock::names) of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The same, to be taken apart or asked for their engine's own strength.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.guards.iter().map(|guard| guard.token())
    }

    /// How long all of them are still valid if no renewal gets through.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default()
    }

    /// Until when all of them are valid if no renewal gets through, on the clock of their clients.
    pub fn valid_until(&self) -> Moment {
        self.guards.iter().map(|guard| guard.valid_until()).min().unwrap_or(Moment::ZERO)
    }

    /// Fails if one of them is lost. No I/O.
    ///
    /// # Errors
    /// [`is_lost`](crate::Error::is_lost), of the first that is.
    pub fn ensure_held(&self) -> Result<()> {
        self.guards.iter().try_for_each(|guard| guard.ensure_held())
    }

    /// Completes when one of them is lost.
    ///
    /// # Cancel safety
    /// Safe; it only looks.
    pub async fn lost(&self) -> (Name, Loss) {
        let (guard, why) = self.lost_one().await;
        (guard.name().clone(), why)
    }

    /// [`lost`](MultiGuard::lost), with the guard that is: two engines may have the same name.
    pub(super) async fn lost_one(&self) -> (&Guard, Loss) {
        let waits = self.guards.iter().map(|guard| Box::pin(async move { (guard, guard.lost().await) }));
        select_all(waits).await.0
    }

    /// Releases all of them at once, and waits until that is confirmed. An engine that does not answer holds up no other.
    ///
    /// # Errors
    /// The first one; all are released or being released all the same.
    ///
    /// # Cancel safety
    /// Dropped midway, the rest is released in the background.
    pub async fn release(self) -> Result<()> {
        // A claim that waits for the first name finds the others free: their releases are sent before.
        join_all(self.guards.into_iter().rev().map(Guard::release)).await.into_iter().collect()
    }
}
