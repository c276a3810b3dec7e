//! The scripts of a node of a quorum, and what they are given.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Claim, ClaimId, Token, Vote};
use redis::Cmd;

use crate::script::queue::{Setting, millis, script};
use crate::script::{Pieces, Script};

pub(crate) static VOTE: Script = Script::new(concat!(
    include_str!("lua/clock.lua"),
    include_str!("lua/vote.lua"),
    include_str!("lua/head.lua"),
    "local function enter()\n",
    include_str!("lua/front.lua"),
    include_str!("lua/enter.lua"),
    "end\n",
    include_str!("lua/refused.lua")
));
pub(crate) static RAISE: Script = script!("raise.lua");
pub(crate) static VOUCH: Script = Script::new(include_str!("lua/vouch.lua"));
pub(crate) static TAKE_BACK: Script = Script::new(concat!(
    include_str!("lua/back.lua"),
    "local function leave()\n",
    include_str!("lua/leave.lua"),
    "end\n",
    include_str!("lua/left.lua")
));
pub(crate) static FREED: Script = Script::new(include_str!("lua/freed.lua"));
pub(crate) static WAITING: Script = Script::new(include_str!("lua/waiting.lua"));

impl Setting {
    /// See [`marker`].
    pub(crate) fn marker(&self) -> String {
        marker(&self.prefix)
    }

    /// The key of those whose votes were refused, where the lock has this key: scripts make it themselves.
    pub(crate) fn refused(key: &[u8]) -> Vec<u8> {
        [b"redlock:", key].concat()
    }

    /// See lua/vote.lua and lua/refused.lua. `named`: the server's run, if that is known for sure.
    pub(crate) fn vote(
        &self,
        key: &[u8],
        claim: &Claim,
        ttl: Duration,
        vote: &Vote,
        again: bool,
        named: Option<&str>,
    ) -> Cmd {
        VOTE.command(&[key], |command| {
            self.ask(command, claim, ttl, false, false);
            let proposal = vote.proposal.load(Ordering::Relaxed);
            let since = if claim.join { since(vote) } else { 0 };
            let numbers = [proposal, millis(self.max_ttl), since].map(|number| (number as f64).to_be_bytes());
            let named = named.unwrap_or_default().as_bytes();
            command.arg(Pieces(&[numbers.as_flattened(), &[u8::from(again)], named]));
        })
    }

    /// See lua/left.lua. `refused`: it may be written down as such.
    pub(crate) fn take_back(
        &self,
        key: &[u8],
        claim: &Claim,
        vote: &Vote,
        tombstone: bool,
        refused: bool,
    ) -> Cmd {
        TAKE_BACK.command(&[key], |command| {
            command.arg(&self.own(claim.id));
            if refused {
                let since = (since(vote) as f64).to_be_bytes();
                self.who(claim).put(command, &[&since[..], &claim.id.as_u128().to_be_bytes()].concat());
            } else if tombstone {
                command.arg("");
            }
            if tombstone {
                command.arg("1");
            }
        })
    }

    /// See lua/freed.lua.
    pub(crate) fn freed(&self, key: &[u8]) -> Cmd {
        FREED.command(&[key], |command| {
            command.arg(&self.inbox);
        })
    }

    /// See lua/waiting.lua.
    pub(crate) fn waiting(&self, keys: &[Vec<u8>]) -> Cmd {
        WAITING.command(keys, |command| {
            command.arg(&self.inbox);
        })
    }

    /// See lua/raise.lua.
    pub(crate) fn raise(&self, key: &[u8], id: ClaimId, to: Token, again: bool) -> Cmd {
        RAISE.command(&[key], |command| {
            command.arg(&id.as_u128().to_be_bytes()).arg(to.get()).arg(self.retention());
            command.arg(u8::from(again));
        })
    }

    /// See lua/vouch.lua.
    pub(crate) fn vouch(&self) -> Cmd {
        VOUCH.command(&[self.marker()], |command| {
            command.arg(millis(self.max_ttl));
        })
    }
}

/// Returns the name that a vote has for a run of the server, for a client with this longest lease.
pub(crate) fn named(run: &str, longest: Duration) -> String {
    format!("{run}/{}", millis(longest))
}

/// When a claim with this vote was made, in µs.
fn since(vote: &Vote) -> u64 {
    vote.order >> 12
}

/// The key that says since when a node of a quorum has all its data. No lock's key begins so.
pub(crate) fn marker(prefix: &str) -> String {
    format!("redlock:{prefix}")
}
