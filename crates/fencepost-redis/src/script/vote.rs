//! The requests to a node of a quorum, and what they are given.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Token, Vote};
use redis::Cmd;

use crate::script::queue::{LEAVE, Setting, flag, millis};
use crate::script::{LOCKS, Script};

pub(crate) static VOTE: Script = Script::new(&LOCKS, "vote");
pub(crate) static RAISE: Script = Script::new(&LOCKS, "raise");
pub(crate) static VOUCH: Script = Script::new(&LOCKS, "vouch");
pub(crate) static VOTES: Script = Script::new(&LOCKS, "votes");
pub(crate) static REFUSED: Script = Script::new(&LOCKS, "refused");

impl Setting {
    /// See [`marker`].
    pub(crate) fn marker(&self) -> String {
        marker(&self.prefix)
    }

    /// The key of those whose votes were refused, where the lock has this key: scripts make it themselves.
    pub(crate) fn refused_key(key: &[u8]) -> Vec<u8> {
        [b"redlock:", key].concat()
    }

    /// See `vote` in lua/quorum.lua. `run`: the run of the server with the longest lease, if that is known for sure.
    pub(crate) fn vote(
        &self,
        key: &[u8],
        claim: &Claim,
        ttl: Duration,
        vote: &Vote,
        was_refused: bool,
        run: Option<&str>,
    ) -> Cmd {
        VOTE.command(&[key], |command| {
            self.request(command, claim, ttl, false);
            command.arg(vote.proposal.load(Ordering::Relaxed)).arg(millis(self.max_ttl));
            command
                .arg(if claim.waits { made(vote) } else { 0 })
                .arg(flag(was_refused))
                .arg(run.unwrap_or_default());
        })
    }

    /// See `leave` in lua/queue.lua. `refused`: the node may have written it down as such.
    pub(crate) fn take_back(
        &self,
        key: &[u8],
        claim: &Claim,
        vote: &Vote,
        tombstone: bool,
        refused: bool,
    ) -> Cmd {
        LEAVE.command(&[key], |command| {
            self.leaves(command, claim.id, tombstone);
            if refused {
                let made = (made(vote) as f64).to_be_bytes();
                self.terms(claim).put(command, &[&made[..], &claim.id.as_u128().to_be_bytes()].concat());
            } else {
                command.arg("");
            }
        })
    }

    /// Tells those whom the node has refused that an eviction has freed the lock: the request to leave of a claim that is not there.
    pub(crate) fn freed(&self, key: &[u8]) -> Cmd {
        LEAVE.command(&[key], |command| {
            self.leaves(command, ClaimId::from_u128(0), false);
            command.arg("-");
        })
    }

    /// See `refused` in lua/quorum.lua.
    pub(crate) fn read_refused(&self, keys: &[Vec<u8>]) -> Cmd {
        REFUSED.command(keys, |command| {
            command.arg(&self.inbox);
        })
    }

    /// See `raise` in lua/quorum.lua.
    pub(crate) fn raise(&self, key: &[u8], id: ClaimId, to: Token, regains: bool) -> Cmd {
        RAISE.command(&[key], |command| {
            command.arg(&id.as_u128().to_be_bytes()).arg(to.get()).arg(self.retention());
            command.arg(flag(regains));
        })
    }

    /// See `vouch` in lua/quorum.lua.
    pub(crate) fn vouch(&self) -> Cmd {
        VOUCH.command(&[self.marker()], |command| {
            command.arg(millis(self.max_ttl));
        })
    }

    /// See `votes` in lua/quorum.lua.
    pub(crate) fn votes(&self) -> Cmd {
        VOTES.command(&[self.marker()], |command| {
            command.arg(millis(self.max_ttl));
        })
    }
}

/// Returns the name that a vote has for a run of the server, for a client with this longest lease.
pub(crate) fn named(run: &str, longest: Duration) -> String {
    format!("{run}/{}", millis(longest))
}

/// When a claim with this vote was made, in µs.
fn made(vote: &Vote) -> u64 {
    vote.order >> 12
}

/// The key that says since when a node of a quorum has all its data. No lock's key begins so.
pub(crate) fn marker(prefix: &str) -> String {
    format!("redlock:{prefix}")
}
