//! The part of a claim at one of the two engines.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::engines::Role;
use crate::backend::claim::Claim;
use crate::backend::{Attempt, Backend, Entry, Removed, Renewal, Reply};
use crate::error::Result;
use crate::runtime::cleanup::{Cleanup, clean_up};
use crate::token::Token;

/// A claim of its own at one engine, made for another claim. Its drop leaves nothing of it behind, in the background.
pub(super) struct Part {
    pub(super) role: Role,
    pub(super) claim: Arc<Claim>,
    pub(super) token: Option<Token>,
    /// `None`: the part is being dropped.
    entry: Option<Box<dyn Entry>>,
    left: Option<Removed>,
}

impl Part {
    /// Part number `number` of `outer`. No two parts of a claim have the same number.
    pub(super) fn new(engine: &dyn Backend, role: Role, outer: &Claim, number: u32, join: bool) -> Part {
        let mut claim = outer.part(number);
        claim.waits = join;
        if role == Role::Primary {
            claim.replicas = outer.replicas;
        }
        let claim = Arc::new(claim);
        let entry = Some(engine.enter(Arc::clone(&claim)));
        Part { role, claim, token: None, entry, left: None }
    }

    fn entry(&mut self) -> &mut dyn Entry {
        &mut **self.entry.as_mut().expect("the entry is there until the part is dropped")
    }

    pub(super) fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        self.entry().attempt()
    }

    pub(super) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry().poll_wait(cx)
    }

    pub(super) fn renewal(&self) -> Option<Renewal> {
        self.entry.as_ref().and_then(|entry| entry.renewal())
    }

    pub(super) fn native(&mut self) -> Option<&mut (dyn std::any::Any + Send)> {
        self.entry().native()
    }

    pub(super) fn is_granted(&self) -> bool {
        self.token.is_some()
    }

    /// Leaves nothing of it at its engine. `outer`: the claim that it was made for.
    pub(super) async fn leave(&mut self, how: Cleanup, outer: &Claim) -> Result<Removed> {
        if let Some(left) = self.left {
            return Ok(left);
        }
        self.claim.end_as(outer);
        let left = how.ask(self.entry()).await?;
        self.left = Some(left);
        Ok(left)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take().filter(|_| self.left.is_none()) {
            clean_up(entry, &self.claim, Cleanup::Withdraw);
        }
    }
}
