//! Client in the memory of one process, and the reference for what all engines mean.
//!
//! `memory:` is an engine of the client's own; `memory:NAME` is shared by all clients of the process that say the same name.
//! Guaranteed: mutual exclusion, first come first served, tokens that grow as long as the process lives, leases on the client's
//! clock. Not: anything beyond the process.

mod bug;
mod entry;
mod line;
mod place;
mod vote;
mod wakers;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use crate::backend::capabilities::{Capabilities, Identity};
use crate::backend::claim::Claim;
use crate::backend::{Backend, Entry, Reply, Session};
use crate::client::url::BackendUrl;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::holder::ClaimInfo;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::{Finding, Report};
use crate::runtime::Runtime;
use crate::time::{Clock, Moment};
use crate::token::Token;
use crate::validity::{Loss, Validity};

#[cfg(feature = "planted")]
pub use bug::Bug;
use bug::Planted;
use entry::MemoryEntry;
use line::Line;
use wakers::Wakers;

const SHARDS: usize = 16;
/// So many lines a shard may hold before empty ones are dropped.
const IDLE_LINES: usize = 64;

/// By name, hashed with a key of the process.
type Lines = HashMap<Name, Line, foldhash::fast::RandomState>;

/// The engine in memory. Clients of one `Memory` share its locks.
pub struct Memory {
    shards: [Mutex<Lines>; SHARDS],
    /// The last token of any resource: one counter for all grows for each.
    last: AtomicU64,
    /// Ours, for alarms.
    me: Weak<Memory>,
    /// The validity that says: each claim has its own.
    validity: Arc<Validity>,
    id: u64,
    kind: Kind,
    planted: Planted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Leases, one identity per claim.
    Claims,
    /// Leases, and all claims of a client are the same to the engine: for testing the local gate.
    Processes,
    /// No leases: turns in a local line.
    Turns,
}

impl Memory {
    /// An engine of its own.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Arc<Memory> {
        Memory::of(Kind::Claims, Planted::default())
    }

    /// An engine that takes all claims of a client for the same, as etcd's keys and SQL's session locks do: for proving the local gate.
    pub fn with_process_identity() -> Arc<Memory> {
        Memory::of(Kind::Processes, Planted::default())
    }

    /// An engine with a bug, for proving the checker.
    #[cfg(feature = "planted")]
    pub fn with_bug(bug: Bug) -> Arc<Memory> {
        Memory::of(Kind::Claims, Planted::new(bug))
    }

    pub(crate) fn turns() -> Arc<Memory> {
        Memory::of(Kind::Turns, Planted::default())
    }

    fn of(kind: Kind, planted: Planted) -> Arc<Memory> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        Arc::new_cyclic(|me| Memory {
            shards: std::array::from_fn(|_| Mutex::default()),
            last: AtomicU64::new(0),
            me: me.clone(),
            validity: Arc::new(Validity::forever()),
            id: COUNT.fetch_add(1, Ordering::Relaxed),
            kind,
            planted,
        })
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Lines> {
        // Any spread will do: the map inside hashes with a key of its own.
        let spread =
            name.as_str().bytes().rev().take(8).fold(0usize, |sum, byte| sum * 31 + usize::from(byte));
        self.shards[spread % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the line of `name`, then wakes whom it made winners, drops the line if it is idle, and sets the alarm
    /// for its next expiry if somebody waits.
    fn on_line<T>(&self, name: &Name, clock: &Clock, work: impl FnOnce(&mut Line, &mut Wakers) -> T) -> T {
        let mut wakers = Wakers::default();
        let mut shard = self.shard(name);
        let line = match shard.get_mut(name) {
            Some(line) => line,
            None => shard.entry(name.clone()).or_default(),
        };
        let result = work(line, &mut wakers);
        let mut alarm = None;
        if line.is_empty() {
            // A name that was just used is likely to be used again: its empty line may stay, if they are few.
            if shard.len() > IDLE_LINES {
                shard.remove(name);
            }
        } else if let Some((at, clock)) = line.next_alarm(clock) {
            alarm = Some((at, clock));
        }
        drop(shard);
        if let Some((at, clock)) = alarm {
            let expiry = Expiry { memory: self.me.clone(), name: name.clone() };
            clock.alarm(at, Waker::from(Arc::new(expiry)));
        }
        wakers.wake();
        result
    }

    fn next_token(&self) -> Token {
        Token::new(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// `token`, if it is above all that were given; it then counts as given.
    fn take_token(&self, token: Token) -> Option<Token> {
        let above = |last| (token.get() > last).then_some(token.get());
        self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, above).ok().map(|_| token)
    }
}

/// Wakes when the lease of a line's holder may have ended.
struct Expiry {
    memory: Weak<Memory>,
    name: Name,
}

impl std::task::Wake for Expiry {
    fn wake(self: Arc<Self>) {
        let Some(memory) = self.memory.upgrade() else { return };
        let clock = {
            let mut shard = memory.shard(&self.name);
            let Some(line) = shard.get_mut(&self.name) else { return };
            // Also for a line that is idle now: it may be used again, and then needs an alarm of its own.
            line.alarm_fired();
            let Some(clock) = line.clock() else { return };
            clock
        };
        memory.on_line(&self.name, &clock, |line, wakers| {
            line.settle(clock.now(), &memory, wakers);
        });
    }
}

impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        let all = Capabilities { replicas: false, ..Capabilities::full("memory") };
        match self.kind {
            // A process that holds gets whatever else it asks for at once: past the others in line, uncounted, and beside
            // its own detached leases.
            Kind::Processes => Capabilities {
                identity: Identity::Process,
                fair: false,
                permits: false,
                detach: false,
                ..all
            },
            Kind::Claims | Kind::Turns => all,
        }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        if bug::planted!(self.planted, TokenBeforeGrant) {
            claim.note.store(self.next_token().get(), Ordering::Relaxed);
        }
        Box::new(MemoryEntry::new(self.strong(), claim, false))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(MemoryEntry::new(self.strong(), claim, true))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        let shard = self.shard(name);
        let info = shard.get(name).map_or_else(Vec::new, Line::claims);
        Reply::ready(Ok(Info { name: name.clone(), last_token: last_of(&info), claims: info }))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        let mut resources: Vec<Info> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = shard.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
            let wanted = wanted.filter(|(name, _)| page.after.as_ref().is_none_or(|after| *name > after));
            resources.extend(wanted.map(|(name, line)| {
                let claims = line.claims();
                Info { name: name.clone(), last_token: last_of(&claims), claims }
            }));
        }
        resources.retain(|info| !info.claims.is_empty());
        resources.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let more = resources.len() > page.limit.max(1);
        resources.truncate(page.limit.max(1));
        let next = more.then(|| resources.last().map(|info| info.name.clone())).flatten();
        Reply::ready(Ok(Listing { resources, next }))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        let clock = self.shard(name).get(name).and_then(Line::clock);
        // A grant whose lease has ended is no grant any more: the line is settled first.
        let evicted = clock.and_then(|clock| {
            self.on_line(name, &clock, |line, wakers| {
                line.settle(clock.now(), self, wakers);
                let evicted = line.evict(token, how.now);
                line.settle(clock.now(), self, wakers);
                evicted
            })
        });
        if let Some(validity) = evicted {
            validity.end_with(Loss::Evicted, how.reason.as_deref().unwrap_or_default());
            return Reply::ready(Ok(()));
        }
        let message = format!("no grant has token {token} any more; look again who holds it");
        Reply::ready(Err(Error::new(ErrorKind::Mismatch, message).of(name.clone()).on("memory")))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        let reach = Finding::note("reach", "these locks are seen by this process alone, and end with it")
            .advice("use sqlite: between processes, redis: between machines");
        Reply::ready(Ok(vec![reach].into()))
    }
}

impl Memory {
    fn strong(&self) -> Arc<Memory> {
        self.me.upgrade().expect("somebody calls us through an Arc")
    }
}

impl Session for Memory {
    fn id(&self) -> u64 {
        self.id
    }

    fn validity(&self) -> &Arc<Validity> {
        &self.validity
    }

    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        for claim in due {
            let clock = claim.runtime.clock();
            let (now, ttl) = (clock.now(), claim.ttl());
            let kept = {
                let mut shard = self.shard(&claim.want().name);
                shard
                    .get_mut(&claim.want().name)
                    .map_or(Err(Loss::Deleted), |line| line.keep(claim, now, ttl, self.planted))
            };
            match kept {
                Ok(()) => {
                    #[cfg(feature = "planted")]
                    if self.planted.has(Bug::LateRenewal) {
                        claim.validity.revive(now, ttl);
                    }
                    claim.confirm(now, ttl);
                }
                Err(why) => claim.validity.end(why),
            }
        }
        Reply::ready(Ok(()))
    }
}

fn last_of(claims: &[ClaimInfo]) -> Option<Token> {
    claims.iter().filter_map(|claim| claim.token).max()
}

/// Opens `memory:` and `memory:NAME`.
pub(crate) fn open(address: BackendUrl, _: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    static SHARED: OnceLock<Mutex<HashMap<String, Weak<Memory>>>> = OnceLock::new();
    let name = match address.only(&[]).and_then(|()| address.decoded()) {
        Ok(name) => name,
        Err(error) => return Reply::ready(Err(error)),
    };
    if name.is_empty() {
        return Reply::ready(Ok(Memory::new()));
    }
    let mut shared = SHARED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|_, memory| memory.strong_count() > 0);
    let known = shared.get(&name).and_then(Weak::upgrade);
    let memory = known.unwrap_or_else(|| {
        let memory = Memory::new();
        shared.insert(name, Arc::downgrade(&memory));
        memory
    });
    Reply::ready(Ok(memory))
}

/// The moment a lease of `claim` made at `now` ends; turns never do.
fn lease_end(kind: Kind, claim: &Claim, now: Moment) -> Moment {
    if kind == Kind::Turns { Moment::NEVER } else { now + claim.ttl() }
}
