//! Renewal: what a client holds and where it waits, a call for many locks at once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Claim, Error, Loss, Moment, Name, Reply, Result, Session};
use futures_util::future::{BoxFuture, join_all};
use redis::Value;

use crate::claim::waiters::{Pushed, TrackedClaim};
use crate::client::RedisClient;
use crate::conn::call::{Call, CallError, Lane};
use crate::script::answer::{Renewed, Standing};
use crate::script::queue::{BATCH, BEAT, LIVE, LockToRenew, OLDEST, RENEW, Setting};
use crate::script::record;

/// Renews the locks of one slot (outside of a cluster: all of them). A shard that does not answer delays only its own
/// slots.
pub(crate) struct RedisSession {
    /// Each claim's entry keeps it, for as long as there is something to renew.
    client: Weak<RedisClient>,
    number: u64,
    slot: u16,
    /// Of those that replicas are waited for, so that nobody else's round takes as long.
    durable: bool,
}

/// One lock in a round, or as many claims to it as one call may renew.
struct Part<'a> {
    name: &'a Name,
    key: Vec<u8>,
    slot: u16,
    waits: bool,
    /// The number of replicas that must acknowledge the renewal: the highest that any claim in it wants.
    replicas: u32,
    held: Vec<(&'a Arc<Claim>, Duration)>,
    /// The oldest claims that wait there, and the last one.
    oldest: Vec<Arc<TrackedClaim>>,
}

/// Returns what renews a claim to the lock.
pub(crate) fn of(client: &Arc<RedisClient>, name: &Name, durable: bool) -> Arc<dyn Session> {
    let new = |slot, durable| {
        let (client, number) = (Arc::downgrade(client), client.number);
        Arc::new(RedisSession { client, number, slot, durable })
    };
    if !durable && !client.setting.cluster {
        return Arc::clone(client.session.get_or_init(|| new(0, false)));
    }
    let (_, slot) = client.key(name);
    new(slot, durable)
}

impl RedisSession {
    async fn round(&self, due: &[Arc<Claim>]) -> Result<()> {
        let Some(client) = self.client.upgrade() else { return Ok(()) };
        // Those that replicas fail must not keep the others from being asked about.
        if self.durable || due.len() <= WAVE {
            return client.renew(due).await;
        }
        // Places in the queue and what ends soon cannot wait for the rest.
        let soon = client.runtime.clock().now() + SOON;
        let is_urgent = |claim: &&Arc<Claim>| !claim.validity.is_confirmed() || claim.validity.until() < soon;
        let urgent: Vec<_> = due.iter().filter(is_urgent).cloned().collect();
        let mut outcome = client.renew(&urgent).await;
        let mut rest = due.iter().filter(|claim| !is_urgent(claim)).cloned();
        loop {
            let some: Vec<_> = rest.by_ref().take(WAVE).collect();
            if some.is_empty() {
                return outcome;
            }
            match client.renew(&some).await {
                // A server that does not answer is asked again soon, not once more for each of these.
                Err(error) if error.is_unreachable() => return Err(error),
                answer => outcome = outcome.and(answer),
            }
        }
    }
}

/// A claim with less than this left is renewed before the rest: short leases, and pushed grants without their full lease.
const SOON: Duration = Duration::from_secs(5);

/// Asks for so many claims at a time: what is asked costs memory until it is answered.
const WAVE: usize = BATCH;

impl RedisClient {
    /// Makes one round for claims of any slots.
    pub(crate) async fn renew(self: &Arc<Self>, due: &[Arc<Claim>]) -> Result<()> {
        let sent = self.runtime.clock().now();
        let mut parts = self.parts(due, sent);
        let way = |part: &Part<'_>| (part.slot, part.replicas > 0);
        parts.sort_by_key(way);
        let mut calls: Vec<&[Part<'_>]> = Vec::new();
        for slot in parts.chunk_by(|a, b| way(a) == way(b)) {
            let mut rest = slot;
            while !rest.is_empty() {
                let mut claims = 0;
                let few = rest.iter().take_while(|part| {
                    claims += part.held.len() + part.oldest.len();
                    claims <= 2 * BATCH
                });
                let (call, others) = rest.split_at(few.count().clamp(1, BATCH));
                calls.push(call);
                rest = others;
            }
        }
        // All at once: they are pipelined, and in a cluster they go to several servers.
        let answers = join_all(calls.into_iter().map(|parts| self.ask(parts, sent))).await;
        answers.into_iter().collect::<Result<Vec<()>>>().map(|_| ())
    }

    fn parts<'a>(&self, due: &'a [Arc<Claim>], now: Moment) -> Vec<Part<'a>> {
        let tracked = &self.tracked;
        let mut parts: Vec<Part<'a>> = Vec::with_capacity(due.len());
        // Where in `parts` a lock is, with replicas and without.
        let mut known: HashMap<(&Name, bool), usize> = HashMap::with_capacity(due.len());
        // Lines that were asked about a moment ago, for other claims of ours.
        let mut later: HashMap<&Name, Moment> = HashMap::new();
        for claim in due {
            let name = &claim.want().name;
            let held = claim.validity.is_confirmed();
            if !held && let Some(at) = later.get(name) {
                claim.validity.waiting(*at, Duration::ZERO);
                continue;
            }
            let replicas = if held { self.replicas(claim) } else { 0 };
            let waits = !held && known.get(&(name, false)).is_none_or(|at| !parts[*at].waits);
            let oldest = if waits { tracked.oldest(name, now + BEAT / 4) } else { Ok(Vec::new()) };
            let oldest = match oldest {
                Ok(oldest) => oldest,
                Err(at) => {
                    claim.validity.waiting(at, Duration::ZERO);
                    later.insert(name, at);
                    continue;
                }
            };
            let at = known.get(&(name, replicas > 0)).copied().filter(|at| parts[*at].held.len() < BATCH);
            let at = at.unwrap_or_else(|| {
                let (key, slot) = self.key(name);
                let held = Vec::with_capacity(usize::from(held));
                parts.push(Part { name, key, slot, waits: false, replicas: 0, held, oldest: Vec::new() });
                known.insert((name, replicas > 0), parts.len() - 1);
                parts.len() - 1
            });
            let part = &mut parts[at];
            if held {
                part.replicas = part.replicas.max(replicas);
                part.held.push((claim, claim.ttl()));
            } else if waits {
                part.waits = true;
                part.oldest = oldest;
            }
        }
        parts
    }

    /// One call for these locks; or one for each if they are being moved to another server one by one; or, if what stands at the
    /// key of one of them is no lock any more, as many as find it: it must not cost the others their leases.
    fn ask<'a>(self: &'a Arc<Self>, parts: &'a [Part<'a>], sent: Moment) -> BoxFuture<'a, Result<()>> {
        let ask = async move {
            let half = match self.ask_together(parts, sent).await {
                Err(CallError::Divided) if parts.len() > 1 => 1,
                Err(CallError::Said(error) | CallError::Foreign(error))
                    if parts.len() > 1 && lasts(&error) =>
                {
                    parts.len().div_ceil(2)
                }
                answer => {
                    if answer.is_err() {
                        let lines = parts.iter().filter(|part| part.waits);
                        lines.for_each(|part| self.tracked.unanswered(part.name));
                    }
                    return answer.map_err(CallError::into_error);
                }
            };
            let answers = join_all(parts.chunks(half).map(|parts| self.ask(parts, sent))).await;
            answers.into_iter().collect::<Result<Vec<()>>>().map(|_| ())
        };
        Box::pin(ask)
    }

    async fn ask_together(self: &Arc<Self>, parts: &[Part<'_>], sent: Moment) -> Result<(), CallError> {
        let locks: Vec<LockToRenew> = parts.iter().map(Part::to_renew).collect();
        let call = Call::new(&RENEW, parts[0].slot, self.setting.renew(&locks));
        // Dropped here, the leases are renewed or not; the next renewal finds out.
        let replicas = parts.iter().map(|part| part.replicas).max().unwrap_or(0);
        let (value, copies) = self.deployment.call_with(Lane::Renewer, &call, replicas).await?;
        let renewed = Renewed::read(&value, &locks).map_err(CallError::Said)?;
        for (part, renewed) in parts.iter().zip(&renewed) {
            part.apply(self, renewed, sent, copies);
        }
        // Behind all confirmations, because each of these waits for another request.
        for (part, renewed) in parts.iter().zip(&renewed) {
            let evicted = part.held.iter().zip(&renewed.claims).filter(|(_, at)| **at == Standing::Evicted);
            for ((claim, _), _) in evicted {
                part.lose(self, claim).await;
            }
        }
        if copies < replicas {
            return Err(CallError::Said(self.deployment.short(copies, replicas).unknown()));
        }
        Ok(())
    }
}

/// Is it something that asking again does not mend, as what somebody else has put at a lock's key?
fn lasts(error: &Error) -> bool {
    error.is_configuration() && !error.is_transient()
}

/// Returns how long a grant lasts that a renewal finds for a claim in the queue.
fn unconfirmed(claim: &Claim) -> Duration {
    claim.ttl().min(LIVE)
}

impl Part<'_> {
    fn to_renew(&self) -> LockToRenew {
        let held = self.held.iter().map(|(claim, ttl)| (claim.id, *ttl));
        // A grant that nobody collects blocks the lock no longer than one that was handed over.
        let oldest = self.oldest.iter().map(|tracked| (tracked.claim.id, unconfirmed(&tracked.claim)));
        LockToRenew { key: self.key.clone(), waits: self.waits, claims: held.chain(oldest).collect() }
    }

    /// Passes the answer on to the claims. `copies`: so many replicas have it.
    fn apply(&self, client: &Arc<RedisClient>, renewed: &Renewed, sent: Moment, copies: u32) {
        let (held, oldest) = renewed.claims.split_at(self.held.len());
        for ((claim, ttl), standing) in self.held.iter().zip(held) {
            match standing {
                Standing::Holds(_) if copies < client.replicas(claim) => {}
                Standing::Holds(_) => {
                    claim.confirm(sent, *ttl);
                }
                // Its record says more.
                Standing::Evicted => {}
                Standing::Waits(_) | Standing::Gone => claim.validity.end(Loss::Deleted),
            }
        }
        if !self.waits {
            return;
        }
        let (mut first, mut gone) = (None, false);
        for (at, (tracked, standing)) in self.oldest.iter().zip(oldest).enumerate() {
            match standing {
                // Its message was lost, or is not here yet.
                Standing::Holds(token) => {
                    // A lease that nobody renews must have its full length from the start, so its claim asks for that.
                    let confirmed = tracked.claim.renewed.then(|| (sent, unconfirmed(&tracked.claim)));
                    tracked.push(Pushed { token: *token, confirmed });
                }
                // The last one is no sign that the oldest still wait.
                Standing::Waits(last) if first.is_none() && at < OLDEST => {
                    first = client.tracked.number(tracked).map(|number| (number, *last));
                }
                Standing::Waits(_) => {}
                Standing::Gone | Standing::Evicted => {
                    tracked.end();
                    gone = true;
                }
            }
        }
        // With none of the oldest waiting any more, or not all that should, the others are to be asked about at once.
        let at_once = gone || first.is_none() && !self.oldest.is_empty();
        let pause = match renewed.next_look {
            _ if at_once => Duration::ZERO,
            Some(look) => (look + Duration::from_millis(20)).min(BEAT),
            None => BEAT,
        };
        client.tracked.anchored(self.name, (first, gone), sent, sent + pause);
    }
}

impl Part<'_> {
    /// The claim is evicted: reads who did that, and why. The message that says so was lost.
    async fn lose(&self, client: &Arc<RedisClient>, claim: &Claim) {
        let call = Call::plain(self.slot, Setting::read(&self.key, claim.id));
        // Dropped here, the next renewal says so again.
        let by = match client.deployment.call(Lane::Renewer, &call).await {
            Ok(Value::BulkString(record)) => record::evicted_by(&record),
            _ => String::new(),
        };
        claim.validity.end_with(Loss::Evicted, by);
    }
}

impl Session for RedisSession {
    fn id(&self) -> u64 {
        self.number << 17 | u64::from(self.durable) << 16 | u64::from(self.slot)
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.round(due))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use fencepost_core::ErrorKind;

    use super::*;

    /// Claims of sessions with one id are renewed together.
    #[test]
    fn each_client_each_slot_and_each_durability_has_a_session_of_its_own() {
        let mut ids = HashSet::new();
        for number in [1, 2, 3, 1 << 20] {
            for slot in [0, 1, 2, 16_383] {
                for durable in [false, true] {
                    ids.insert(RedisSession { client: Weak::new(), number, slot, durable }.id());
                }
            }
        }
        assert_eq!(ids.len(), 4 * 4 * 2);
    }

    #[test]
    fn an_error_lasts_if_a_person_has_to_mend_it_at_the_key() {
        let error = |kind| Error::new(kind, "it fails");
        assert!(lasts(&error(ErrorKind::Configuration)));
        assert!(!lasts(&error(ErrorKind::Configuration).transient(true)));
        assert!(!lasts(&error(ErrorKind::Denied)));
        assert!(!lasts(&error(ErrorKind::Unreachable)));
    }
}
