//! The runs that the engine keeps.

use std::collections::HashMap;

use super::chain::NodeState;
use super::queue::Queue;
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::name::Name;
use crate::operator::run::{Run, Runs};
use crate::sync::Mutex;
use crate::time::nanos;
use crate::token::Token;

/// How many names may be kept before those are looked for whose time is over.
const FEW: usize = 64;

/// The runs of all resources. Its lock is taken last.
#[derive(Default)]
pub(super) struct KeptRuns(Mutex<Table>);

#[derive(Default)]
struct Table {
    names: HashMap<Name, Kept>,
    /// At so many names those whose time is over are removed.
    full: usize,
}

#[derive(Default)]
struct Kept {
    runs: Runs,
    /// Until when they are kept, in wall-clock microseconds.
    until: u64,
}

impl KeptRuns {
    /// Changes the runs of the claim's resource at `now`, if the claim asks for that.
    pub(super) fn change(&self, claim: &Claim, change: impl FnOnce(&mut Runs, u64)) {
        let Some(keep) = claim.history else { return };
        let now = claim.runtime.clock().wall_micros();
        let mut table = self.0.lock();
        if table.names.len() >= table.full {
            table.names.retain(|_, kept| kept.until > now);
            table.full = (2 * table.names.len()).max(FEW);
        }
        let kept = table.names.entry(claim.want().name.clone()).or_default();
        change(&mut kept.runs, now);
        kept.until = kept.until.max(now.saturating_add(nanos(keep) / 1_000));
    }

    /// Returns the runs of a resource.
    pub(super) fn of(&self, name: &Name) -> Option<Runs> {
        self.0.lock().names.get(name).map(|kept| kept.runs.clone())
    }
}

impl Queue {
    /// Since when the claim holds, in wall-clock microseconds. `None`: it does not.
    pub(super) fn held_since(&self, key: usize, id: ClaimId) -> Option<u64> {
        let info = self.node(key, id)?.info();
        info.holds().then_some(info.since_micros)
    }

    /// Whether the grant with this token holds.
    pub(super) fn is_held_by(&self, token: Token) -> bool {
        let has = |state: &NodeState| matches!(state, NodeState::Holding { token: has, .. } if *has == token);
        self.keys(self.holders).any(|key| has(&self.nodes[key].state))
    }
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its claim was released, with its work done or not.
    Released,
    /// Nobody has learned of the grant: it was no run.
    Withdrawn,
}

impl End {
    /// Notes the end of the claim's run. `held` is that run, if the queue has its grant.
    pub(super) fn note(self, claim: &Claim, token: Token, held: Option<Run>, runs: &mut Runs, now: u64) {
        match self {
            End::Released => drop(runs.end(token, now, claim.outcome(), held)),
            End::Withdrawn => runs.cancel(token),
        }
    }
}
