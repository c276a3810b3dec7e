//! Renewal: what a client holds and where it waits, a call for many locks at once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use fencepost_core::{Claim, Error, Loss, Moment, Name, Reply, Result, Session, Validity};
use futures_util::future::{BoxFuture, join_all};
use redis::Value;

use crate::claim::waiters::{Place, Pushed};
use crate::client::Shared;
use crate::conn::call::{Call, Lane, Trouble};
use crate::script::answer::{Renewed, Standing};
use crate::script::queue::{BATCH, BEAT, KEEP, Kept, Setting};
use crate::script::record;

/// Renews the locks of one slot (outside of a cluster: all of them). A shard that does not answer delays only its own
/// slots.
pub(crate) struct RedisSession {
    /// Each claim's entry keeps it, for as long as there is something to renew.
    shared: Weak<Shared>,
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
    oldest: Vec<Arc<Place>>,
}

/// Returns what renews a claim to the lock.
pub(crate) fn of(shared: &Arc<Shared>, name: &Name, durable: bool) -> Arc<dyn Session> {
    let new = |slot, durable| {
        let (shared, number) = (Arc::downgrade(shared), shared.number);
        Arc::new(RedisSession { shared, number, slot, durable })
    };
    if !durable && !shared.setting.cluster {
        return Arc::clone(shared.session.get_or_init(|| new(0, false)));
    }
    let (_, slot) = shared.key(name);
    new(slot, durable)
}

impl RedisSession {
    async fn round(&self, due: &[Arc<Claim>]) -> Result<()> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        // Those that replicas fail must not keep the others from being asked about.
        if self.durable || due.len() <= WAVE {
            return renew(&shared, due).await;
        }
        // Places in line and what ends soon cannot wait for the rest.
        let soon = shared.runtime.clock().now() + SOON;
        let is_urgent = |claim: &&Arc<Claim>| !claim.validity.is_confirmed() || claim.validity.until() < soon;
        let urgent: Vec<_> = due.iter().filter(is_urgent).cloned().collect();
        let mut outcome = renew(&shared, &urgent).await;
        let mut rest = due.iter().filter(|claim| !is_urgent(claim)).cloned();
        loop {
            let some: Vec<_> = rest.by_ref().take(WAVE).collect();
            if some.is_empty() {
                return outcome;
            }
            match renew(&shared, &some).await {
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

/// One round for claims of any slots.
pub(crate) async fn renew(shared: &Arc<Shared>, due: &[Arc<Claim>]) -> Result<()> {
    Round { shared }.renew(due).await
}

struct Round<'r> {
    shared: &'r Arc<Shared>,
}

impl Round<'_> {
    async fn renew(&self, due: &[Arc<Claim>]) -> Result<()> {
        let sent = self.shared.runtime.clock().now();
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
        let places = &self.shared.places;
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
            let replicas = if held { self.shared.replicas(claim) } else { 0 };
            let waits = !held && known.get(&(name, false)).is_none_or(|at| !parts[*at].waits);
            let oldest = if waits { places.oldest(name, now + BEAT / 4) } else { Ok(Vec::new()) };
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
                let (key, slot) = self.shared.key(name);
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
    fn ask<'a>(&'a self, parts: &'a [Part<'a>], sent: Moment) -> BoxFuture<'a, Result<()>> {
        let ask = async move {
            let half = match self.ask_together(parts, sent).await {
                Err(Trouble::Divided) if parts.len() > 1 => 1,
                Err(Trouble::Said(error) | Trouble::Foreign(error)) if parts.len() > 1 && lasts(&error) => {
                    parts.len().div_ceil(2)
                }
                answer => {
                    if answer.is_err() {
                        let lines = parts.iter().filter(|part| part.waits);
                        lines.for_each(|part| self.shared.places.unanswered(part.name));
                    }
                    return answer.map_err(Trouble::into_error);
                }
            };
            let answers = join_all(parts.chunks(half).map(|parts| self.ask(parts, sent))).await;
            answers.into_iter().collect::<Result<Vec<()>>>().map(|_| ())
        };
        Box::pin(ask)
    }

    async fn ask_together(&self, parts: &[Part<'_>], sent: Moment) -> Result<(), Trouble> {
        let shared = &self.shared;
        let locks: Vec<Kept> = parts.iter().map(Part::kept).collect();
        let call = Call::new(&KEEP, parts[0].slot, shared.setting.keep(&locks));
        // Dropped here, the leases are renewed or not; the next renewal finds out.
        let replicas = parts.iter().map(|part| part.replicas).max().unwrap_or(0);
        let (value, copies) = shared.net.call_with(Lane::Renewer, &call, replicas).await?;
        let renewed = Renewed::read(&value, &locks).map_err(Trouble::Said)?;
        for (part, renewed) in parts.iter().zip(renewed) {
            part.heed(shared, &renewed, sent, copies);
            let evicted = part.held.iter().zip(&renewed.claims).filter(|(_, at)| **at == Standing::Evicted);
            for ((claim, _), _) in evicted {
                part.lose(shared, claim).await;
            }
        }
        if copies < replicas {
            return Err(Trouble::Said(shared.net.short(copies, replicas).error()));
        }
        Ok(())
    }
}

/// Is it something that asking again does not mend, as what somebody else has put at a lock's key?
fn lasts(error: &Error) -> bool {
    error.is_configuration() && !error.is_transient()
}

impl Part<'_> {
    fn kept(&self) -> Kept {
        let held = self.held.iter().map(|(claim, ttl)| (claim.id, *ttl));
        let oldest = self.oldest.iter().map(|place| (place.claim.id, place.claim.ttl()));
        Kept { key: self.key.clone(), waits: self.waits, claims: held.chain(oldest).collect() }
    }

    /// Passes the answer on to the claims. `copies`: so many replicas have it.
    fn heed(&self, shared: &Arc<Shared>, renewed: &Renewed, sent: Moment, copies: u32) {
        let (held, oldest) = renewed.claims.split_at(self.held.len());
        for ((claim, ttl), standing) in self.held.iter().zip(held) {
            match standing {
                Standing::Holds(_) if copies < shared.replicas(claim) => {}
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
        for (place, standing) in self.oldest.iter().zip(oldest) {
            match standing {
                // Its message was lost, or is not here yet.
                Standing::Holds(token) => {
                    let confirmed = Some((sent, place.claim.ttl()));
                    place.push(Pushed { token: *token, confirmed });
                }
                Standing::Waits(last) if first.is_none() => {
                    first = shared.places.number(place).map(|number| (number, *last));
                }
                Standing::Waits(_) => {}
                Standing::Gone | Standing::Evicted => {
                    place.end();
                    gone = true;
                }
            }
        }
        // With none of the oldest waiting any more, or not all that should, the others are to be asked about at once.
        let at_once = gone || first.is_none() && !self.oldest.is_empty();
        let pause = match renewed.again {
            _ if at_once => Duration::ZERO,
            Some(again) => (again + Duration::from_millis(20)).min(BEAT),
            None => BEAT,
        };
        shared.places.anchored(self.name, (first, gone), sent, sent + pause);
    }
}

impl Part<'_> {
    /// The claim is evicted: reads who did that, and why. The message that says so was lost.
    async fn lose(&self, shared: &Arc<Shared>, claim: &Claim) {
        let call = Call::plain(self.slot, Setting::read(&self.key, claim.id));
        // Dropped here, the next renewal says so again.
        let by = match shared.net.call(Lane::Renewer, &call).await {
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

    fn validity(&self) -> &Arc<Validity> {
        // One for all: nothing ever ends it.
        static LIFE: LazyLock<Arc<Validity>> = LazyLock::new(|| Arc::new(Validity::forever()));
        &LIFE
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        Reply::coming(self.round(due))
    }
}
