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
    asked: bool,
    left: Option<Removed>,
}

impl Part {
    /// Part number `number` of `outer`. No two parts of a claim have the same number.
    pub(super) fn new(engine: &dyn Backend, role: Role, outer: &Claim, number: u32, join: bool) -> Part {
        let id = outer.id.derive(number);
        let want = outer.want().clone();
        let mut claim = Claim::new(id, want, outer.ttl(), Arc::clone(&outer.holder), outer.runtime.clone());
        claim.waits = join;
        claim.renewed = outer.renewed;
        claim.read_write = outer.read_write;
        claim.show_as(outer);
        claim.history = outer.history;
        claim.needs_run = outer.needs_run;
        if role == Role::Primary {
            claim.replicas = outer.replicas;
        }
        let claim = Arc::new(claim);
        let entry = Some(engine.enter(Arc::clone(&claim)));
        Part { role, claim, token: None, entry, asked: false, left: None }
    }

    fn entry(&mut self) -> &mut dyn Entry {
        &mut **self.entry.as_mut().expect("the entry is there until the part is dropped")
    }

    pub(super) fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        self.asked = true;
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
        if outer.is_released() {
            self.claim.set_released();
        }
        if let Some((exit_code, end)) = outer.reported() {
            self.claim.report(exit_code, end);
        }
        let left = how.ask(self.entry()).await?;
        self.left = Some(left);
        Ok(left)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let nothing = !self.asked || self.left.is_some();
        if let Some(entry) = self.entry.take().filter(|_| !nothing) {
            clean_up(entry, &self.claim, Cleanup::Withdraw);
        }
    }
}
