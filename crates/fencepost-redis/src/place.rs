//! Implements core's [`Place`]: what is asked of the server for one claim.

mod convert;
mod leave;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Claim, Conversion, Error, ErrorKind, Found, Leave, Left, Moment, Place, Request, Result,
    Session, Token,
};

use self::convert::ConversionState;
use crate::claim::session;
use crate::claim::spread::spread;
use crate::claim::waiters::{Collected, TrackedClaim};
use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::error::ENGINE;
use crate::script::answer::{Entered, ScriptReply, stays_out};
use crate::script::queue::{BEAT, ENTER, LIVE, NewOwner, TAKE_UP};
use crate::script::vote::RAISE;
use crate::script::vote::VOTE;

/// A grant that was handed with less than this left is confirmed before anybody works under it.
const ENOUGH: Duration = Duration::from_millis(700);

pub(crate) struct RedisPlace {
    client: Arc<RedisClient>,
    claim: Arc<Claim>,
    /// From the first request on.
    tracked: Option<Arc<TrackedClaim>>,
    attaches: bool,
    /// It stands in the queue.
    waits: bool,
    /// Nothing of it is at the server, and asking again changes nothing.
    over: bool,
    /// Its vote was refused, and the server may have written that down.
    refused: bool,
    conversion: ConversionState,
    /// The token of its grant, once that was answered.
    token: Option<Token>,
    /// A request to leave was made.
    leaves: bool,
}

impl RedisPlace {
    pub(crate) fn new(client: &Arc<RedisClient>, claim: Arc<Claim>, attaches: bool) -> RedisPlace {
        let client = Arc::clone(client);
        RedisPlace {
            client,
            claim,
            tracked: None,
            attaches,
            waits: false,
            over: false,
            refused: false,
            conversion: ConversionState::default(),
            token: None,
            leaves: false,
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
        // A grant that replicas must acknowledge is requested again: WAIT follows that request on its connection.
        let ask = self.client.replicas(&self.claim) > 0;
        let (pushed, anchor) = match tracked.collect() {
            Collected::Nothing => return None,
            Collected::Gone => return Some(Attempt::Gone),
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
        self.waits = false;
        self.token = Some(pushed.token);
        Some(Attempt::Granted(pushed.token))
    }

    async fn request_grant(&mut self) -> Result<Attempt> {
        let tracked = self.tracked();
        tracked.forget_trouble();
        let (key, slot) = self.client.key(&self.claim.want().name);
        let ttl = self.claim.ttl();
        let call = match &self.claim.vote {
            None => {
                if self.waits {
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
            Entered::Holds { token } => {
                self.claim.confirm(sent, ttl);
                self.client.tracked.hold(&tracked);
                (self.waits, self.refused) = (false, false);
                self.token = Some(token);
                Attempt::Granted(token)
            }
            Entered::Waits { next_look, number, last } => {
                let pause = next_look.map_or(BEAT, |look| (look + Duration::from_millis(20)).min(BEAT));
                let due = self.client.tracked.stand(&tracked, (sent, last), number, sent + pause);
                self.claim.validity.waiting(due, Duration::ZERO);
                self.waits = true;
                Attempt::Blocked { next_attempt: None }
            }
            // A holder that is dead may not have been found yet.
            Entered::Busy { next_look: Some(Duration::ZERO) } if self.claim.vote.is_none() => {
                self.client.go_on(Lane::Caller, &key, slot).await;
                return Box::pin(self.request_grant()).await;
            }
            Entered::Busy { next_look } => {
                if !self.claim.waits && !tracked.unanswered.is_over() {
                    // An earlier copy may come yet, and be granted.
                    Box::pin(self.depart(false)).await.map_err(Error::unknown)?;
                }
                (self.waits, self.refused) = (false, self.claim.waits);
                Attempt::Blocked { next_attempt: next_look.map(|look| self.past(look)) }
            }
            Entered::Away(left) => return Err(stays_out(left)),
            Entered::Gone => Attempt::Gone,
        })
    }

    /// The grant does not count: its replicas have not got it. Dropped midway, the entry still has it, and withdraws it.
    async fn give_back(&mut self, copies: u32, replicas: u32) -> Error {
        // Asking again is the caller's choice: each time the lock is taken from others for as long as replicas may take.
        let error = self.client.deployment.short(copies, replicas).transient(false);
        match self.depart(false).await {
            Ok(_) => {
                self.over = true;
                error
            }
            Err(_) => error.unknown(),
        }
    }

    /// A little after a lease of another has ended, spread by the claim's id.
    fn past(&self, lease: Duration) -> Moment {
        self.now() + lease + spread(self.claim.id)
    }

    /// Takes up or extends the grant of a lease, or detaches this claim's own.
    async fn take(&mut self, owner: NewOwner) -> Result<Option<Token>> {
        let (key, slot) = self.client.key(&self.claim.want().name);
        let ttl = self.claim.ttl();
        let call = Call::new(
            &TAKE_UP,
            slot,
            self.client.setting.take_up(&key, self.claim.id, self.claim.mode(), ttl, owner),
        );
        let sent = self.now();
        let replicas = self.client.replicas(&self.claim);
        // Dropped here, the lease is extended or not; nothing else changes.
        let answer = self.client.deployment.call_with(Lane::Caller, &call, replicas).await;
        let (value, copies) = answer.map_err(CallError::into_error)?;
        let reply = ScriptReply::read(&value)?;
        match (reply.status, &*reply.numbers) {
            (b"GONE", []) => Ok(None),
            (b"HELD", [_]) if copies < replicas => {
                Err(self.client.deployment.short(copies, replicas).unknown())
            }
            (b"HELD", [token]) => {
                self.claim.confirm(sent, ttl);
                Ok(Some(Token::new(*token as u64)))
            }
            _ => Err(reply.nonsense()),
        }
    }

    async fn take_up(&mut self) -> Result<Attempt> {
        // An extension is not renewed. The grant may be that of a guard, which is told of its eviction also afterwards.
        let owner = if self.claim.renewed { NewOwner::Client } else { NewOwner::Unchanged };
        if self.claim.renewed {
            self.client.tracked.attach(&self.claim);
        }
        let Some(token) = self.take(owner).await? else { return Ok(Attempt::Gone) };
        self.token = Some(token);
        Ok(Attempt::Granted(token))
    }

    async fn raise(&self, to: Token) -> Result<Attempt> {
        let name = &self.claim.want().name;
        let (key, slot) = self.client.key(name);
        let regains = self.claim.vote.as_ref().is_some_and(|vote| vote.regains);
        let call = Call::new(&RAISE, slot, self.client.setting.raise(&key, self.claim.id, to, regains));
        let value = self.client.deployment.call(Lane::Caller, &call).await.map_err(CallError::into_error)?;
        let reply = ScriptReply::read(&value)?;
        match reply.status {
            b"DONE" => Ok(Attempt::Granted(to)),
            b"NONE" => {
                Err(Error::new(ErrorKind::Mismatch, format!("token {to} cannot be this grant's any more"))
                    .of(name.clone())
                    .on(ENGINE))
            }
            _ => Err(reply.nonsense()),
        }
    }
}

impl Drop for RedisPlace {
    fn drop(&mut self) {
        if let Some(tracked) = &self.tracked {
            self.client.tracked.remove(tracked);
        }
        if self.attaches {
            self.client.tracked.detach(&self.claim);
        }
    }
}

impl Place for RedisPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        if self.over {
            return Request::ready(Ok(Attempt::Gone));
        }
        if self.attaches {
            return Request::drops(self.take_up());
        }
        if self.waits
            && let Some(attempt) = self.collect()
        {
            return Request::ready(Ok(attempt));
        }
        Request::drops(self.request_grant())
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.tracked {
            Some(tracked) if self.waits || self.refused => tracked.poll(cx),
            Some(tracked) if self.conversion.is_asked => tracked.poll_hint(cx),
            _ => Poll::Pending,
        }
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        match how {
            _ if self.over => Request::ready(Ok(Found::Missing.into())),
            Leave::Withdraw | Leave::Release => Request::drops(self.depart(may_have_left)),
            Leave::Detach => Request::drops(async move {
                let detached = self.take(NewOwner::Nobody).await?.is_some();
                Ok(if detached { Found::There } else { Found::Missing }.into())
            }),
        }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        // A vote that was refused has nothing to renew.
        if !holds && !self.waits {
            return None;
        }
        // Places in the queue need no replicas.
        let durable = holds && self.client.replicas(&self.claim) > 0;
        Some(session::of(&self.client, &self.claim.want().name, durable))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        match to {
            Conversion::Exclusive { join } => Request::drops(self.become_exclusive(join)),
            Conversion::Shared { token } => Request::drops(self.become_shared(token)),
            Conversion::Raise { to } => Request::drops(self.raise(to)),
        }
    }

    fn why_silent(&self) -> Option<Error> {
        self.tracked.as_ref()?.trouble().map(Error::unknown)
    }
}
