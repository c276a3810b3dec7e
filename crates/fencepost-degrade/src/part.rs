//! The part of a claim at one of the two engines.

use std::sync::Arc;

use super::engines::Role;
use fencepost_core::{Backend, Claim, Entry, How, Leave, Removed, Result, Token};

/// A claim of its own at one engine, made for another claim. Its drop leaves nothing of it behind, in the background.
pub(super) struct Part {
    pub(super) role: Role,
    pub(super) token: Option<Token>,
    pub(super) entry: Entry,
}

impl Part {
    /// Part number `number` of `outer`. No two parts of a claim have the same number.
    pub(super) fn new(engine: &Arc<dyn Backend>, role: Role, outer: &Claim, number: u32, join: bool) -> Part {
        let mut claim = outer.part(number);
        claim.waits = join;
        if role == Role::Primary {
            claim.replicas = outer.replicas;
        }
        Part { role, token: None, entry: Arc::clone(engine).entry(Arc::new(claim), How::Enter) }
    }

    pub(super) fn claim(&self) -> &Arc<Claim> {
        self.entry.claim()
    }

    pub(super) fn is_granted(&self) -> bool {
        self.token.is_some()
    }

    /// Leaves nothing of it at its engine.
    pub(super) async fn leave(&mut self, how: Leave) -> Result<Removed> {
        self.entry.remove(how).await
    }
}
