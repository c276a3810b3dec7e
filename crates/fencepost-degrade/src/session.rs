//! Renewal at one engine or both.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::{Either, join_all, join3, select};

use super::engines::{Engines, Plan, Role};
use super::held::{AllHeld, Held, HeldPart, first_due, waits};
use super::part::Part;
use fencepost_core::{Attempt, Claim, Error, ErrorKind, Moment, Renewal, Reply, Result, Session};

/// Renews the claims whose parts have the same sessions at their engines. A session that hangs holds up the claims of no other.
pub(super) struct DegradeSession {
    engines: Arc<Engines>,
    all: Arc<AllHeld>,
    /// Which sessions the parts of the claims had when their renewal began.
    id: u64,
}

/// Parts that are added later have numbers from here on.
const ADDED: u32 = 1 << 16;

/// The claims that one engine renews together.
type Round = (Arc<dyn Session>, Vec<Arc<Claim>>);

impl DegradeSession {
    pub(super) fn new(engines: &Arc<Engines>, all: &Arc<AllHeld>, id: u64) -> DegradeSession {
        DegradeSession { engines: Arc::clone(engines), all: Arc::clone(all), id }
    }

    /// Confirms the claim as far as its parts are confirmed.
    fn confirm(&self, outer: &Claim, held: &Held, sent: Moment) -> Result<()> {
        let now = self.engines.clock.now();
        let mut held = held.lock();
        if self.engines.plan().roles == [Role::Primary]
            && let [second, primary] = &held.parts[..]
            && self.engines.has_fallback()
            && second.role == Role::Second
        {
            // From now on nobody is granted the lock by the fallback alone: the primary's grant suffices.
            outer.validity.rest_instead(now, 0, &primary.claim.validity);
            held.parts.remove(0);
        }
        let confirmed = held.confirmed_at(&self.engines, now);
        if confirmed > Moment::ZERO {
            outer.confirm(confirmed, outer.ttl());
        }
        // A part that rests on a session is as old as the last probe.
        if confirmed + self.engines.interval < sent {
            let message = "an engine that has to confirm the lock did not; check it";
            return Err(Error::new(ErrorKind::Unreachable, message).on(self.engines.primary.name()));
        }
        Ok(())
    }

    /// Whether the claim is to get a part at the primary, which is back.
    fn is_to_add(&self, outer: &Claim, held: &Held, plan: &Plan) -> bool {
        let held = held.lock();
        self.engines.has_fallback()
            && plan.roles.contains(&Role::Primary)
            && outer.validity.is_confirmed()
            && !held.leaving
            && matches!(&held.parts[..], [only] if only.role == Role::Second)
    }

    /// Takes the lock at the primary as well. While the fallback's grant is there, nobody else gets it there, unless it is held by a
    /// client that does not know that the primary was away.
    async fn add_primary(&self, outer: &Claim, held: &Held) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(primary) = self.engines.primary.get() else { return };
        let number = ADDED + COUNT.fetch_add(1, Ordering::Relaxed) % (1 << 30);
        let mut part = Part::new(primary, Role::Primary, outer, number, false);
        let until = self.engines.clock.now() + self.engines.interval / 2;
        let attempt = self.engines.watched(Role::Primary, part.entry.attempt());
        let Some(Ok(Attempt::Granted(token))) = self.engines.clock.within(until, attempt).await else {
            return;
        };
        part.token = Some(token);
        let mut held = held.lock();
        let now = self.engines.clock.now();
        if !held.leaving && outer.validity.rest_instead(now, 1, &part.claim().validity) {
            held.parts.push(HeldPart::of(&part));
            held.added = Some(part);
            outer.set_degraded(None);
        }
    }
}

impl Session for DegradeSession {
    fn id(&self) -> u64 {
        self.id
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            let sent = self.engines.clock.now();
            let plan = self.engines.plan();
            let mut rounds: BTreeMap<(Role, u64), Round> = BTreeMap::new();
            let mut renewed = Vec::with_capacity(due.len());
            let mut added = Vec::new();
            for outer in due {
                let Some(held) = self.all.get(outer.id) else { continue };
                let parts = held.lock().parts.clone();
                let due_before = first_due(&parts);
                for part in parts {
                    part.claim.set_ttl(outer.ttl());
                    if let Some(Renewal { claim, session }) = part.renewal {
                        let key = (part.role, session.id());
                        rounds.entry(key).or_insert_with(|| (session, Vec::new())).1.push(claim);
                    }
                }
                renewed.push((outer, held, due_before));
            }
            for (outer, held, _) in &renewed {
                if self.is_to_add(outer, held, &plan) {
                    added.push(self.add_primary(outer, held));
                }
            }
            let of = |wanted: Role| {
                let rounds = rounds.iter().filter(|((role, _), _)| *role == wanted).map(|(_, round)| round);
                join_all(rounds.map(|(session, claims)| self.engines.watched(wanted, session.renew(claims))))
            };
            // A fallback that hangs is waited for as long as it has to confirm.
            let second = async {
                match select(pin!(of(Role::Second)), pin!(self.engines.primary_alone())).await {
                    Either::Left((answers, _)) => answers,
                    Either::Right(_) => Vec::new(),
                }
            };
            let (primary, second, _) = join3(of(Role::Primary), second, join_all(added)).await;
            let mut failure = primary.into_iter().chain(second).find_map(Result::err);
            let waits_for_it = self.engines.plan().wait.is_some();
            for (outer, held, due_before) in renewed {
                if outer.validity.is_confirmed() {
                    if let Err(error) = self.confirm(outer, &held, sent) {
                        failure.get_or_insert(error);
                    }
                    continue;
                }
                let parts = held.lock().parts.clone();
                // A round that failed for other claims may have renewed this one.
                if failure.is_none() || waits_for_it || first_due(&parts) != due_before {
                    waits(outer, &parts, sent);
                }
            }
            match failure {
                Some(error) => Err(error),
                None => Ok(()),
            }
        })
    }
}
