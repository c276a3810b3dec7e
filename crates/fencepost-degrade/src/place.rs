//! What is asked of the engines of the layer for one claim.

use std::any::Any;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};

use super::engines::{Engines, Plan, Role};
use super::held::{AllHeld, Held, HeldPart, waits};
use super::part::Part;
use super::session::DegradeSession;
use fencepost_core::{
    Attempt, Claim, Degraded, Error, ErrorKind, Leave, Left, Mode, Moment, Place, Removed, Reply, Request,
    Result, Session, Token, granted_degraded,
};

/// The clock of the fallback may be ahead of the primary's by as much: so long a claim waits until the primary's token is greater.
const LONGEST_SKEW: Duration = Duration::from_secs(1);

/// An odd number whose bits are spread: the golden ratio's. It makes the ids of sessions differ that have other units below them.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

pub(super) struct DegradePlace {
    engines: Arc<Engines>,
    all: Arc<AllHeld>,
    held: Arc<Held>,
    max_ttl: Duration,
    claim: Arc<Claim>,
    /// In the order in which they were asked for.
    parts: Vec<Part>,
    /// The number of parts that were made.
    made: u32,
    /// The plan of the last attempt.
    plan: Option<Plan>,
    /// Completes when the plan has changed.
    change: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// When the fallback's grant was made, if the primary was asked right after that.
    granted_at: Option<Moment>,
    token: Option<Token>,
}

impl DegradePlace {
    pub(super) fn new(
        engines: &Arc<Engines>,
        all: &Arc<AllHeld>,
        max_ttl: Duration,
        claim: Arc<Claim>,
    ) -> Self {
        DegradePlace {
            engines: Arc::clone(engines),
            all: Arc::clone(all),
            held: Arc::default(),
            max_ttl,
            claim,
            parts: Vec::new(),
            made: 0,
            plan: None,
            change: None,
            granted_at: None,
            token: None,
        }
    }

    async fn ask_engines(&mut self) -> Result<Attempt> {
        // The engine that has granted it keeps the grant until the claim leaves.
        let granted = |place: &Self| place.parts.iter().any(Part::is_granted);
        self.drive().await.map_err(|error| if granted(self) { error.unknown() } else { error })
    }

    async fn drive(&mut self) -> Result<Attempt> {
        if self.claim.ttl() > self.max_ttl {
            let (ttl, most) = (self.claim.ttl(), self.max_ttl);
            return Err(Error::invalid(format!(
                "a lease of {ttl:?} is longer than the longest one, {most:?}"
            )));
        }
        let engines = Arc::clone(&self.engines);
        self.change = None;
        loop {
            let mut changes = engines.changes();
            let plan = engines.plan();
            self.plan = Some(plan);
            if let Some(until) = plan.wait {
                self.parts.clear();
                if !self.claim.waits && until > engines.clock.now() + engines.interval {
                    return Err(engines.nobody(until));
                }
                engines.wait(until, &mut changes).await?;
                continue;
            }
            self.keep_parts_of(&plan);
            if let Some(answer) = self.ask_all(&plan).await? {
                return Ok(answer);
            }
            if let Some(answer) = self.conclude(&plan).await? {
                return Ok(answer);
            }
        }
    }

    /// Drops the parts that the plan does not have, and those that came too early: the fallback is asked first.
    fn keep_parts_of(&mut self, plan: &Plan) {
        self.parts.retain(|part| plan.roles.contains(&part.role));
        let fits = self.parts.iter().zip(plan.roles).take_while(|(part, role)| part.role == **role).count();
        self.parts.truncate(fits);
    }

    /// Asks the engines in their order. `None`: all have granted the claim, or the plan is another one now.
    async fn ask_all(&mut self, plan: &Plan) -> Result<Option<Attempt>> {
        for (at, role) in plan.roles.iter().enumerate() {
            if self.parts.get(at).is_some_and(Part::is_granted) {
                continue;
            }
            if at == self.parts.len() {
                let part = self.make(*role)?;
                self.parts.push(part);
            }
            let engines = Arc::clone(&self.engines);
            let part = &mut self.parts[at];
            let answer = match part.entry.attempt() {
                Reply::Ready(answer) => {
                    answer.ok_or_else(|| Error::new(ErrorKind::Internal, "an empty reply"))?
                }
                coming => {
                    let changed = changed(Arc::clone(&engines), plan.roles);
                    match select(pin!(engines.watched(*role, coming)), pin!(changed)).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right(_) => return Ok(None),
                    }
                }
            };
            match answer? {
                Attempt::Granted(token) => {
                    part.token = Some(token);
                    if at == 0 {
                        self.granted_at = Some(self.engines.clock.now());
                    }
                    if *role == Role::Primary {
                        self.engines.learn_offset(token);
                    }
                }
                Attempt::Gone => {
                    self.parts.clear();
                    return Ok(Some(Attempt::Gone));
                }
                blocked @ Attempt::Blocked { .. } => {
                    self.granted_at = None;
                    if self.claim.waits {
                        let parts: Vec<HeldPart> = self.parts.iter().map(HeldPart::of).collect();
                        waits(&self.claim, &parts, self.engines.clock.now());
                    } else {
                        // Dropped midway, they are removed in the background, and do not count as granted any more.
                        let mut parts = std::mem::take(&mut self.parts);
                        join_all(parts.iter_mut().map(|part| part.leave(Leave::Withdraw))).await;
                    }
                    return Ok(Some(blocked));
                }
            }
        }
        Ok(None)
    }

    fn make(&mut self, role: Role) -> Result<Part> {
        self.made += 1;
        let Some(engine) = self.engines.get(role) else { return Err(self.engines.primary.not_open()) };
        let has = engine.capabilities();
        let lacks = match self.claim.want().mode {
            Mode::Shared if !has.shared => "shared holders",
            Mode::Permits { .. } if !has.permits => "permits",
            _ => return Ok(Part::new(engine, role, &self.claim, self.made, self.claim.waits)),
        };
        Err(Error::unsupported(has.engine, lacks))
    }

    /// Makes the grant of what the engines have granted. `None`: the plan is another one now, or a part has to be asked for again.
    async fn conclude(&mut self, plan: &Plan) -> Result<Option<Attempt>> {
        let engines = Arc::clone(&self.engines);
        let now = engines.clock.now();
        if !self.parts.iter().map(|part| part.role).eq(plan.roles.iter().copied())
            || !self.parts.iter().all(Part::is_granted)
        {
            return Ok(None);
        }
        let current = engines.plan();
        // Both engines always suffice.
        let suffices = plan.roles.len() == 2 || (current.roles == plan.roles && current.wait.is_none());
        if engines.has_fallback() && !suffices {
            return Ok(None);
        }
        if self.parts.iter().any(|part| !part.claim().is_valid()) {
            self.parts.clear();
            return Ok(Some(Attempt::Gone));
        }
        if engines.has_fallback() && plan.roles.len() == 2 && !self.tokens_grow(now).await? {
            return Ok(None);
        }
        let token = match self.parts.last().and_then(|part| part.token) {
            Some(token) if plan.degraded != Some(Degraded::LocalOnly) => token,
            _ => engines.own_token(),
        };
        let lives = match &self.parts[..] {
            [first, second] => {
                vec![Arc::clone(&first.claim().validity), Arc::clone(&second.claim().validity)]
            }
            [only] => vec![Arc::clone(&only.claim().validity), Arc::clone(&only.claim().validity)],
            _ => Vec::new(),
        };
        if !lives.is_empty() {
            self.claim.validity.rest_on(2, lives);
        }
        self.share();
        let sent = self.held.lock().confirmed_at(&engines, now);
        self.claim.confirm(sent, self.claim.ttl());
        self.token = Some(token);
        self.claim.set_degraded(plan.degraded);
        if plan.degraded.is_some() {
            granted_degraded(engines.primary.name(), engines.policy());
        }
        Ok(Some(Attempt::Granted(token)))
    }

    /// Returns whether the primary's token is greater than the fallback's: the token of both is the primary's. If it is not, the primary's
    /// grant is given back and asked for again.
    async fn tokens_grow(&mut self, now: Moment) -> Result<bool> {
        let [first, second] = &self.parts[..] else { return Ok(true) };
        let (Some(fallback), Some(primary)) = (first.token, second.token) else { return Ok(false) };
        let behind = Duration::from_micros(fallback.get().saturating_sub(primary.get()));
        let elapsed = self.granted_at.map_or(Duration::MAX, |at| now.since(at));
        let ahead =
            Duration::from_micros(primary.get().saturating_sub(fallback.get())).saturating_sub(elapsed);
        // After a switch the primary grants alone one longest lease after the last grant of the fallback.
        if behind > LONGEST_SKEW.min(self.max_ttl) || ahead > self.max_ttl {
            let (skew, which) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
            let message = format!(
                "the clock of the primary engine is {skew:?} {which} the fallback's, so tokens would not grow over a switch; \
                 synchronise the clocks"
            );
            return Err(Error::new(ErrorKind::Configuration, message).on(self.engines.primary.name()));
        }
        if primary > fallback {
            return Ok(true);
        }
        if let Some(mut part) = self.parts.pop() {
            // Dropped after an error, it is removed in the background.
            let _ = part.leave(Leave::Withdraw).await;
        }
        self.engines.clock.sleep_until(now + behind + Duration::from_micros(1)).await;
        Ok(false)
    }

    /// Shows the parts to the renewal.
    fn share(&self) {
        let mut held = self.held.lock();
        if held.added.is_none() && self.token.is_none() {
            held.parts = self.parts.iter().map(HeldPart::of).collect();
        }
        drop(held);
        self.all.add(self.claim.id, &self.held);
    }

    /// Asks each engine to leave nothing. Returns what each has removed.
    async fn leave_parts(&mut self, how: Leave) -> Vec<Result<Removed>> {
        join_all(self.parts.iter_mut().map(|part| part.leave(how))).await
    }

    async fn depart(&mut self, how: Leave) -> Result<Left> {
        let granted = self.token.is_some();
        // The engines that the grant rests on.
        let needed: Vec<Role> = {
            let mut held = self.held.lock();
            held.leaving = true;
            self.parts.extend(held.added.take());
            held.parts.iter().map(|part| part.role).collect()
        };
        if granted {
            // A part that the grant does not rest on any more is removed in the background: its engine may be away.
            self.parts.retain(|part| needed.contains(&part.role));
        }
        let roles: Vec<Role> = self.parts.iter().map(|part| part.role).collect();
        let (mut removed, mut failed) = (Removed::Nothing, None);
        let mut released = granted;
        for (role, left) in roles.into_iter().zip(self.leave_parts(how).await) {
            match left {
                Ok(Removed::Nothing) => released &= !needed.contains(&role),
                Ok(Removed::Released | Removed::Withdrawn) => removed = Removed::Withdrawn,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(if removed == Removed::Nothing { error } else { error.unknown() });
        }
        let removed = if !granted {
            removed
        } else if released && (!self.parts.is_empty() || self.claim.is_valid()) {
            Removed::Released
        } else {
            Removed::Nothing
        };
        self.parts.clear();
        self.all.remove(self.claim.id);
        Ok(Left::by_parts(removed))
    }
}

/// Completes when the plan has other engines than these.
async fn changed(engines: Arc<Engines>, roles: &'static [Role]) {
    let mut changes = engines.changes();
    loop {
        let plan = engines.plan();
        if plan.roles != roles || plan.wait.is_some() {
            return;
        }
        engines.plan_change(&mut changes).await;
    }
}

impl Place for DegradePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(self.ask_engines())
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(plan) = self.plan else { return Poll::Ready(()) };
        let engines = &self.engines;
        let change = self.change.get_or_insert_with(|| Box::pin(changed(Arc::clone(engines), plan.roles)));
        if change.as_mut().poll(cx).is_ready() {
            self.change = None;
            return Poll::Ready(());
        }
        match self.parts.iter_mut().find(|part| !part.is_granted()) {
            Some(part) => part.entry.poll_wait(cx),
            None => Poll::Ready(()),
        }
    }

    fn why_silent(&self) -> Option<Error> {
        self.plan?.wait.map(|until| self.engines.nobody(until))
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        self.share();
        let (mut id, mut renews) = (0_u64, self.token.is_some());
        for part in &self.held.lock().parts {
            let unit = part.renewal.as_ref().map_or(0, |renewal| renewal.session.id());
            let role = match part.role {
                Role::Primary => 1,
                Role::Second => 2,
            };
            id = (id.rotate_left(1) ^ unit).wrapping_mul(SPREAD).wrapping_add(role);
            renews |= part.renewal.is_some();
        }
        renews.then(|| Arc::new(DegradeSession::new(&self.engines, &self.all, id)) as Arc<dyn Session>)
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        Request::drops(self.depart(how))
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        match &mut self.parts[..] {
            [only] => only.entry.native(),
            _ => None,
        }
    }
}

impl Drop for DegradePlace {
    fn drop(&mut self) {
        self.all.remove(self.claim.id);
    }
}
