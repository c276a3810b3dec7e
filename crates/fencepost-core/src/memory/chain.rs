//! One node in a queue, and the chains that nodes hang in.

use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::backend::admission::Mode;
use crate::backend::claim::Claim;
use crate::backend::claim_id::ClaimId;
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;
use crate::token::Token;

/// No node: the end of a chain.
pub(super) const NONE: usize = usize::MAX;

/// A claim in queue.
pub(super) struct Node {
    pub(super) id: ClaimId,
    pub(super) claim: Arc<Claim>,
    /// How it wants or holds the resource.
    pub(super) mode: Mode,
    pub(super) state: NodeState,
    pub(super) before: usize,
    pub(super) after: usize,
    /// Since when it waits or holds.
    pub(super) since: Moment,
}

pub(super) enum NodeState {
    Waiting { waker: Option<Waker> },
    Holding { token: Token, end: Moment, evicted: bool, detached: bool },
}

/// A reader that waits until the other holders have left.
pub(super) struct Upgrading {
    pub(super) key: usize,
    pub(super) waker: Option<Waker>,
}

#[derive(Clone, Copy)]
/// Places in order, through one slab.
pub(super) struct Chain {
    pub(super) head: usize,
    pub(super) tail: usize,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { head: NONE, tail: NONE }
    }
}

impl Node {
    /// When its lease ends.
    pub(super) fn end(&self) -> Moment {
        match self.state {
            NodeState::Holding { end, .. } => end,
            NodeState::Waiting { .. } => Moment::NEVER,
        }
    }

    /// As operators see it.
    pub(super) fn info(&self) -> ClaimInfo {
        let clock = self.claim.runtime.clock();
        let age = clock.now().since(self.since);
        let (token, end, evicted, detached) = match self.state {
            NodeState::Holding { token, end, evicted, detached } => {
                (Some(token), Some(end), evicted, detached)
            }
            NodeState::Waiting { .. } => (None, None, false, false),
        };
        ClaimInfo {
            token,
            since_micros: clock.wall_micros().saturating_sub(age.as_micros() as u64),
            age,
            expires_in: end.map(|end| end.since(clock.now())),
            evicted,
            detached,
            mode: self.mode,
            ..self.claim.info()
        }
    }
}

/// Appends the node.
pub(super) fn push(nodes: &mut Slab<Node>, chain: &mut Chain, key: usize) {
    nodes[key].before = chain.tail;
    nodes[key].after = NONE;
    match nodes.get_mut(chain.tail) {
        Some(tail) => tail.after = key,
        None => chain.head = key,
    }
    chain.tail = key;
}

/// Takes the node out.
pub(super) fn unlink(nodes: &mut Slab<Node>, chain: &mut Chain, key: usize) {
    let (before, after) = (nodes[key].before, nodes[key].after);
    match nodes.get_mut(before) {
        Some(node) => node.after = after,
        None => chain.head = after,
    }
    match nodes.get_mut(after) {
        Some(node) => node.before = before,
        None => chain.tail = before,
    }
}
