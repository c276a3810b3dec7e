//! One claim at the server.

mod leave;
mod turn;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Entry, Error, ErrorKind, Moment, Removed, Renewal, Reply, Result, Token, Withdrawal,
};

use self::turn::Turn;
use crate::claim::session;
use crate::claim::spread::spread;
use crate::claim::waiters::{Collected, TrackedClaim};
use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::{Entered, ScriptReply};
use crate::script::history::End;
use crate::script::queue::{BEAT, ENTER, LIVE, TAKE_UP};
use crate::script::vote::RAISE;
use crate::script::vote::VOTE;

/// A grant that was handed with less than this left is confirmed before anybody works under it.
const ENOUGH: Duration = Duration::from_millis(700);

pub(crate) struct RedisEntry {
    client: Arc<RedisClient>,
    claim: Arc<Claim>,
    /// From the first request on.
    tracked: Option<Arc<TrackedClaim>>,
    at: At,
    withdrawal: Withdrawal,
    /// Its vote was refused, and the server may have written that down.
    refused: bool,
    /// HDEL releases its grant, see lua/layout.lua.
    lone: bool,
    turn: Turn,
    /// The token of its grant, once that was answered.
    token: Option<Token>,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Nowhere,
    /// As `Nowhere`, of a claim that takes up a detached grant.
    Detached,
    Waiting,
    Holding,
    Left(Removed),
}

impl RedisEntry {
    pub(crate) fn new(client: &Arc<RedisClient>, claim: Arc<Claim>, attached: bool) -> RedisEntry {
        let at = if attached { At::Detached } else { At::Nowhere };
        let client = Arc::clone(client);
        RedisEntry {
            client,
            claim,
            tracked: None,
            at,
            withdrawal: Withdrawal::default(),
            refused: false,
            lone: false,
            turn: Turn::default(),
            token: None,
        }
    }

    fn tracked(&mut self) -> Arc<TrackedClaim> {
        let tracked = self.tracked.get_or_insert_with(|| self.client.tracked.add(&self.claim));
        Arc::clone(tracked)
    }

    fn now(&self) -> Moment {
        self.claim.runtime.clock().now()
    }

    /// A grant that was pushed, without a round trip if enough of it is left.
    fn collect(&mut self) -> Option<Attempt> {
        let tracked = self.tracked.as_ref()?;
        // A grant that replicas must acknowledge is requested again: WAIT follows that request on its connection. The request also begins
        // the run that the server keeps.
        let ask = self.client.replicas(&self.claim) > 0 || self.claim.history.is_some();
        let (pushed, anchor) = match tracked.collect() {
            Collected::Nothing => return None,
            Collected::Gone => {
                self.at = At::Left(Removed::Nothing);
                return Some(Attempt::Gone);
            }
            Collected::Grant { .. } if ask => return None,
            Collected::Grant { pushed, anchor } => (pushed, anchor),
        };
        let (sent, length) = match pushed.confirmed {
            Some(confirmed) => confirmed,
            // A lease that nobody renews must have its full length from the start.
            None if !self.claim.renewed => return None,
            None => (anchor?, LIVE),
        };
        if self.now() + ENOUGH >= sent + length || !self.claim.confirm(sent, length) {
            return None;
        }
        self.client.tracked.hold(tracked);
        self.at = At::Holding;
        self.token = Some(pushed.token);
        Some(Attempt::Granted(pushed.token))
    }

    async fn ask(&mut self) -> Result<Attempt> {
        let tracked = self.tracked();
        tracked.forget_trouble();
        let (key, slot) = self.client.key(&self.claim.want().name);
        let ttl = self.claim.ttl();
        let call = match &self.claim.vote {
            None => {
                if self.at == At::Waiting {
                    tracked.begin_request();
                }
                Call::new(&ENTER, slot, self.client.setting.enter(&key, &self.claim, ttl)).entering(&tracked)
            }
            Some(vote) => {
                if self.refused {
                    // Only later messages count.
                    tracked.begin_request();
                }
                let (setting, run) = (&self.client.setting, self.client.deployment.run());
                let command = setting.vote(&key, &self.claim, ttl, vote, self.refused, run.as_deref());
                Call::naming(&VOTE, command, run).entering(&tracked)
            }
        };
        let sent = self.now();
        let replicas = self.client.replicas(&self.claim);
        // Dropped here, or failed: the claim may be at the server. It is asked about again, or withdrawn.
        let answer = self.client.deployment.call_with(Lane::Caller, &call, replicas).await;
        let (value, copies) = answer.map_err(CallError::into_error)?;
        Ok(match Entered::read(&value)? {
            Entered::Holds { .. } if copies < replicas => {
                return Err(Box::pin(self.give_back(copies, replicas)).await);
            }
            Entered::Holds { token, hdel } => {
                self.claim.confirm(sent, ttl);
                self.client.tracked.hold(&tracked);
                self.at = At::Holding;
                self.refused = false;
                self.lone = hdel;
                self.token = Some(token);
                Attempt::Granted(token)
            }
            Entered::Waits { again, number, last } => {
                let pause = again.map_or(BEAT, |again| (again + Duration::from_millis(20)).min(BEAT));
                let due = self.client.tracked.stand(&tracked, (sent, last), number, sent + pause);
                self.claim.validity.waiting(due, Duration::ZERO);
                self.at = At::Waiting;
                Attempt::Blocked { again: None }
            }
            // A holder that is dead may not have been found yet.
            Entered::Busy { again: Some(Duration::ZERO) } if self.claim.vote.is_none() => {
                self.client.go_on(Lane::Caller, &key, slot).await;
                return Box::pin(self.ask()).await;
            }
            Entered::Busy { again } => {
                if !self.claim.waits && !tracked.unanswered.is_over() {
                    // An earlier copy may come yet, and be granted.
                    Box::pin(self.leave(End::Withdrawn)).await?;
                }
                self.at = At::Nowhere;
                self.refused = self.claim.waits;
                Attempt::Blocked { again: again.map(|again| self.past(again)) }
            }
            Entered::Away(left) => {
                let message = format!(
                    "this node restarted, lost data or is new, and stays out for {} s: wait so long, \
                     or say with `fencepost doctor --init` (redlock::vouch) that nothing was lost",
                    left.as_secs() + 1
                );
                return Err(Error::new(ErrorKind::Unreachable, message).on(ENGINE));
            }
            Entered::Gone => {
                self.at = At::Left(Removed::Nothing);
                Attempt::Gone
            }
        })
    }

    /// The grant does not count: its replicas have not got it. Dropped midway, the entry still has it, and withdraws it.
    async fn give_back(&mut self, copies: u32, replicas: u32) -> Error {
        // Asking again is the caller's choice: each time the lock is taken from others for as long as replicas may take.
        let error = self.client.deployment.short(copies, replicas).transient(false);
        match self.leave(End::Withdrawn).await {
            Ok(left) => {
                self.at = At::Left(left);
                error
            }
            Err(_) => error.unknown(),
        }
    }

    /// A little after a lease of another has ended, spread by the claim's id.
    fn past(&self, lease: Duration) -> Moment {
        self.now() + lease + spread(self.claim.id)
    }

    /// Takes up the grant of a lease, or detaches this claim's own.
    async fn take(&mut self, ours: bool) -> Result<Option<Token>> {
        let (key, slot) = self.client.key(&self.claim.want().name);
        let ttl = self.claim.ttl();
        let call = Call::new(
            &TAKE_UP,
            slot,
            self.client.setting.take_up(&key, self.claim.id, self.claim.mode(), ttl, ours),
        );
        let sent = self.now();
        let replicas = self.client.replicas(&self.claim);
        // Dropped here, the lease is extended or not; nothing else changes.
        let answer = self.client.deployment.call_with(Lane::Caller, &call, replicas).await;
        let (value, copies) = answer.map_err(CallError::into_error)?;
        let reply = ScriptReply::read(&value)?;
        match (reply.status, &*reply.numbers) {
            (b"GONE", []) => Ok(None),
            (b"HELD", [_]) if copies < replicas => Err(self.client.deployment.short(copies, replicas)),
            (b"HELD", [token]) => {
                self.claim.confirm(sent, ttl);
                Ok(Some(Token::new(*token as u64)))
            }
            _ => Err(reply.nonsense()),
        }
    }

    async fn take_up(&mut self) -> Result<Attempt> {
        let renewed = self.claim.renewed;
        let Some(token) = self.take(renewed).await? else { return Ok(Attempt::Gone) };
        self.tracked();
        self.at = At::Holding;
        self.token = Some(token);
        Ok(Attempt::Granted(token))
    }
}

impl Drop for RedisEntry {
    fn drop(&mut self) {
        if let Some(tracked) = &self.tracked {
            self.client.tracked.remove(tracked);
        }
    }
}

impl Entry for RedisEntry {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        match self.at {
            At::Left(_) => return Reply::ready(Ok(Attempt::Gone)),
            At::Detached => return Reply::coming(self.take_up()),
            At::Waiting => {
                if let Some(attempt) = self.collect() {
                    return Reply::ready(Ok(attempt));
                }
            }
            At::Nowhere | At::Holding => {}
        }
        Reply::coming(self.ask())
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&self.at, &self.tracked) {
            (At::Waiting, Some(tracked)) => tracked.poll(cx),
            (At::Nowhere, Some(tracked)) if self.refused => tracked.poll(cx),
            (At::Holding, Some(tracked)) if self.turn.is_asked => tracked.poll(cx),
            _ => Poll::Pending,
        }
    }

    fn why_silent(&self) -> Option<Error> {
        self.tracked.as_ref()?.trouble().map(|failure| failure.unknown())
    }

    fn renewal(&self) -> Option<Renewal> {
        if !matches!(self.at, At::Waiting | At::Holding) {
            return None;
        }
        // Places in the queue need no replicas.
        let durable = matches!(self.at, At::Holding) && self.client.replicas(&self.claim) > 0;
        let session = session::of(&self.client, &self.claim.want().name, durable);
        Some(Renewal { claim: Arc::clone(&self.claim), session })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(End::Withdrawn)
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(End::Released)
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        Reply::coming(self.become_exclusive(join))
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        Reply::coming(self.become_shared(token))
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        Reply::coming(async move {
            let name = &self.claim.want().name;
            let (key, slot) = self.client.key(name);
            let again = self.claim.vote.as_ref().is_some_and(|vote| vote.again);
            let call = Call::new(&RAISE, slot, self.client.setting.raise(&key, self.claim.id, to, again));
            let value =
                self.client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
            let reply = ScriptReply::read(&value)?;
            match reply.status {
                b"DONE" => Ok(()),
                b"NONE" => Err(Error::new(
                    ErrorKind::Mismatch,
                    format!("token {to} cannot be this grant's any more"),
                )
                .of(name.clone())
                .on(ENGINE)),
                _ => Err(reply.nonsense()),
            }
        })
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(async move {
            if self.take(false).await?.is_some() {
                return Ok(());
            }
            Err(self.claim.gone())
        })
    }
}
