//! The engine in memory behind a layer that can have one bug.

use fencepost_core::sync::Mutex;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Clock, Conversion, Entry, Eviction, How, Info, Leave,
    Left, Listing, Memory, Mode, Moment, Name, Operator, Page, Place, Record, RecordKind, RecordStore,
    Removed, Reply, Request, Result, Runtime, Session, StoredRecord, Token, Want, margin,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a claim pauses that was told to wait by the layer and not by the engine.
const PAUSE: Duration = Duration::from_secs(2);

/// How old the records may be that a reader gets.
const LAG: Duration = Duration::from_secs(2);

/// A bug that other libraries had, or one like it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A release ends the grant of another holder of the name, if there is one, and not its own.
    ReleaseByName,
    /// A claim that waits takes a lock when it is woken, whether or not the engine granted it.
    NoRecheck,
    /// Leases end by the wall clock, which steps.
    WallClockDeadline,
    /// Two grants in a row get the same token.
    TokenReuse,
    /// The token is drawn when the claim is made, before its request is on its way.
    TokenBeforeGrant,
    /// Renewals are confirmed although the lease ends at the engine, which grants the lock again. A validity that its holder has seen to end
    /// is not revived by that, because core refuses it: its test is `nothing_revives_a_life_that_is_over`.
    LateRenewal,
    /// The grants of some claims that wait wake nobody.
    LostWakeup,
    /// A waiter that gives up stays in the queue.
    OrphanedWaiter,
    /// Two claims can have the same id, so that one is taken for the other's repeated request.
    SharedId,
    /// Readers overtake a waiting writer.
    StarvingWriter,
    /// An upgrade does not wait for the other readers.
    UpgradeBesideReaders,
    /// Readers are admitted while an upgrade waits.
    UpgradeOvertaken,
    /// A second upgrade is not refused.
    TwoUpgrades,
    /// A claim that does not wait and finds the lock busy is granted another lock.
    OtherLock,
    /// A look counts the first holder twice.
    HolderCountedTwice,
    /// A look leaves out a holder once another one has left.
    HolderLeftOut,
    /// A look shows the leader under the name of the last candidate.
    LastCandidateShown,
    /// Records of runs are read from a copy that lags behind, and are written all the same.
    LaggingRecords,
}

/// Returns the engine, for [`simulate`](fencepost_testkit::sim::simulate).
pub(crate) fn memory_with(bug: Option<Bug>) -> impl Fn(&Clock) -> Arc<dyn Backend> + Sync {
    move |clock| {
        Arc::new(BuggyMemory {
            memory: Memory::new(),
            bug,
            claims: Mutex::default(),
            wall_clock_ahead: AtomicU64::new(ahead(clock)),
            most_holders: Mutex::default(),
            copied: Arc::default(),
        })
    }
}

/// Returns by how many microseconds the wall clock is ahead of the other one.
fn ahead(clock: &Clock) -> u64 {
    clock.wall_micros() - clock.now().as_nanos() / 1_000
}

/// Records as they were read at a moment.
type CopiedRecords = HashMap<(RecordKind, Name), (Moment, StoredRecord)>;

struct BuggyMemory {
    memory: Arc<Memory>,
    /// `None`: each request and each answer passes as it is.
    bug: Option<Bug>,
    /// All claims in the order in which they were made.
    claims: Mutex<Vec<(ClaimId, Weak<Claim>)>>,
    /// What [`ahead`] returned last.
    wall_clock_ahead: AtomicU64,
    /// The greatest number of holders of each name that a look has shown.
    most_holders: Mutex<HashMap<Name, usize>>,
    copied: Arc<Mutex<CopiedRecords>>,
}

impl BuggyMemory {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns the number of a claim, which is that of the detached grant that it takes up.
    fn number_of(&self, claim: &Arc<Claim>) -> u64 {
        let mut claims = self.claims.lock();
        let known = claims.iter().position(|(id, _)| *id == claim.id);
        claims.push((claim.id, Arc::downgrade(claim)));
        known.unwrap_or(claims.len() - 1) as u64 + 1
    }

    /// Returns the claims that hold something as far as their holders know, but not `but`.
    fn holders(&self, but: &Claim) -> Vec<Arc<Claim>> {
        let now = but.runtime.clock().now();
        let claims = self.claims.lock();
        let living = claims.iter().filter_map(|(_, claim)| claim.upgrade());
        living.filter(|claim| claim.id != but.id && claim.validity.until() > now).collect()
    }

    /// Returns the other holders of the claim's name.
    fn beside(&self, claim: &Claim) -> Vec<Arc<Claim>> {
        let mut holders = self.holders(claim);
        holders.retain(|other| other.want.name == claim.want.name);
        holders
    }

    /// Ends the grant of a claim at the engine, as a program can that knows its id. Its holder is not told. Returns whether there was one.
    fn end_grant(&self, claim: &Claim) -> bool {
        let mut entry = Arc::clone(&self.memory).entry(Arc::new(copy_of(claim)), How::Attach);
        matches!(entry.withdraw(), Reply::Ready(Some(Ok(Removed::Released))))
    }

    /// Ends the leases that the wall clock has passed by a step.
    fn end_by_wall_clock(&self, claim: &Claim) {
        let (clock, ahead) = (claim.runtime.clock(), ahead(claim.runtime.clock()));
        let step = ahead.saturating_sub(self.wall_clock_ahead.swap(ahead, Ordering::Relaxed));
        let now = clock.now() + Duration::from_micros(step);
        let is_past = |other: &&Arc<Claim>| other.validity.until() + margin(other.ttl()) < now;
        self.holders(claim).iter().filter(is_past).for_each(|other| {
            self.end_grant(other);
        });
    }

    /// Changes what a look shows.
    fn distort(&self, bug: Bug, info: &mut Info) {
        let count = info.holders().count();
        match bug {
            Bug::HolderCountedTwice if count > 0 => info.claims.insert(0, info.claims[0].clone()),
            Bug::HolderLeftOut => {
                let mut all = self.most_holders.lock();
                let most = all.entry(info.name.clone()).or_default();
                *most = count.max(*most);
                if (1..*most).contains(&count) {
                    info.claims.remove(0);
                }
            }
            Bug::LastCandidateShown if count > 0 => {
                let last = info.claims.last().and_then(|claim| claim.reason.clone());
                info.claims[0].reason = last;
            }
            _ => {}
        }
    }
}

/// Returns a claim that the engine takes for the same one. Its validity is its own.
fn copy_of(claim: &Claim) -> Claim {
    let want = Want { mode: claim.mode(), ..claim.want.clone() };
    let (holder, runtime) = (Arc::clone(&claim.holder), claim.runtime.clone());
    let mut copy = Claim::new(claim.id, want, claim.ttl(), holder, runtime);
    (copy.waits, copy.renewed) = (claim.waits, claim.renewed);
    copy
}

/// Returns the answer to a request of the engine in memory.
fn answered<T>(request: Request<'_, T>) -> Result<T> {
    match request {
        Request::Ready(answer) => answer,
        Request::Drops(_) | Request::Kept(_) => panic!("the engine in memory answers on the spot"),
    }
}

impl Backend for BuggyMemory {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let mut inner = Arc::clone(&claim);
        if self.has(Bug::StarvingWriter) && how == How::Enter && claim.want.mode == Mode::Shared {
            let mut reader = copy_of(&claim);
            (reader.validity, reader.unfair) = (Arc::clone(&claim.validity), true);
            inner = Arc::new(reader);
        }
        let number = self.number_of(&claim);
        let inner = Arc::clone(&self.memory).entry(inner, how);
        let place =
            BuggyPlace { engine: self, claim: Arc::clone(&claim), number, inner, asked: false, told: false };
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

struct BuggyPlace {
    engine: Arc<BuggyMemory>,
    claim: Arc<Claim>,
    number: u64,
    inner: Entry,
    /// It has asked for the grant.
    asked: bool,
    /// It was told to wait by the layer and not by the engine, which has no news for it.
    told: bool,
}

impl BuggyPlace {
    fn has(&self, bug: Bug) -> bool {
        self.engine.has(bug)
    }

    /// Asks for a grant of another claim or of another name.
    fn ask_as(&mut self, change: impl FnOnce(&mut Claim), how: How) -> Result<Attempt> {
        let mut other = copy_of(&self.claim);
        other.validity = Arc::clone(&self.claim.validity);
        change(&mut other);
        let mut entry = Arc::clone(&self.engine.memory).entry(Arc::new(other), how);
        let answer = answered(entry.ask());
        if let Ok(Attempt::Granted(_)) = answer {
            // The drop of the other one withdraws what waits.
            self.inner = entry;
        }
        answer
    }

    /// Takes up the grant of a holder whose id ends like its own.
    fn take_up_shared_id(&mut self) -> Option<Attempt> {
        let end = |id: ClaimId| id.as_u128() % 8;
        let same =
            self.engine.beside(&self.claim).into_iter().find(|other| end(other.id) == end(self.claim.id))?;
        let granted = |attempt: &Attempt| matches!(attempt, Attempt::Granted(_));
        self.ask_as(|claim| claim.id = same.id, How::Attach).ok().filter(granted)
    }

    fn attempt(&mut self) -> Result<Attempt> {
        let is_first = !std::mem::replace(&mut self.asked, true);
        if self.has(Bug::WallClockDeadline) {
            self.engine.end_by_wall_clock(&self.claim);
        }
        if self.has(Bug::SharedId)
            && is_first
            && let Some(granted) = self.take_up_shared_id()
        {
            return Ok(granted);
        }
        let answer = answered(self.inner.ask())?;
        let takes = self.has(Bug::NoRecheck) && self.claim.waits && !is_first
            || self.has(Bug::OtherLock) && !self.claim.waits;
        if takes && matches!(answer, Attempt::Blocked { .. }) {
            let name = Name::new(&format!("{}/{}", self.claim.want.name, self.number));
            return self.ask_as(|claim| claim.want.name = name.expect("a short name"), How::Enter);
        }
        Ok(answer)
    }

    /// Returns the token that is shown for one of the engine's.
    fn shown(&self, attempt: Attempt) -> Attempt {
        match attempt {
            Attempt::Granted(token) if self.has(Bug::TokenReuse) => {
                Attempt::Granted(Token::new(token.get().div_ceil(2)))
            }
            Attempt::Granted(_) if self.has(Bug::TokenBeforeGrant) => {
                Attempt::Granted(Token::new(self.number))
            }
            other => other,
        }
    }

    fn upgrade(&mut self, join: bool) -> Result<Attempt> {
        let to = Conversion::Exclusive { join: join && !self.has(Bug::UpgradeOvertaken) };
        let mut answer = answered(self.inner.convert(to));
        let is_blocked = matches!(answer, Ok(Attempt::Blocked { .. }));
        if self.has(Bug::UpgradeBesideReaders) && is_blocked {
            for other in self.engine.beside(&self.claim) {
                self.engine.end_grant(&other);
            }
            answer = answered(self.inner.convert(to));
        }
        let is_refused = answer.as_ref().is_err_and(|error| error.is_upgrade_conflict());
        self.told = self.has(Bug::UpgradeOvertaken) && is_blocked || self.has(Bug::TwoUpgrades) && is_refused;
        if self.told {
            let next_attempt = Some(self.claim.runtime.clock().now() + PAUSE);
            return Ok(Attempt::Blocked { next_attempt });
        }
        answer
    }
}

impl Place for BuggyPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::ready(self.attempt().map(|attempt| self.shown(attempt)))
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.told {
            return Poll::Pending;
        }
        let mut nobody = Context::from_waker(Waker::noop());
        let is_lost = self.has(Bug::LostWakeup) && self.number.is_multiple_of(16);
        self.inner.poll_news(if is_lost { &mut nobody } else { cx })
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if self.has(Bug::ReleaseByName) && how == Leave::Release {
            let engine = &self.engine;
            if engine.beside(&self.claim).iter().any(|other| engine.end_grant(other)) {
                self.inner.abandon(false);
                return Request::ready(Ok(Removed::Released.into()));
            }
        }
        let waits = self.claim.waits && self.inner.renewal().is_none();
        if self.has(Bug::OrphanedWaiter) && waits {
            self.inner.abandon(false);
            return Request::ready(Ok(Removed::Withdrawn.into()));
        }
        self.inner.leave(how, may_have_left)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        match to {
            Conversion::Exclusive { join } => Request::ready(self.upgrade(join)),
            Conversion::Shared { .. } | Conversion::Raise { .. } => self.inner.convert(to),
        }
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let inner = self.inner.session(holds)?;
        Some(if self.has(Bug::LateRenewal) { Arc::new(UnaskedSession(inner)) } else { inner })
    }
}

/// Confirms each renewal, and does not ask the engine.
struct UnaskedSession(Arc<dyn Session>);

impl Session for UnaskedSession {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        for claim in due {
            claim.confirm(claim.runtime.clock().now(), claim.ttl());
        }
        Reply::ready(Ok(()))
    }
}

impl Operator for BuggyMemory {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        let mut reply = self.memory.operator().inspect(name);
        if let (Some(bug), Reply::Ready(Some(Ok(info)))) = (self.bug, &mut reply) {
            self.distort(bug, info);
        }
        reply
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.operator().evict(name, token, how)
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        let inner = self.memory.operator().records(runtime)?;
        if !self.has(Bug::LaggingRecords) {
            return Some(inner);
        }
        Some(Arc::new(LaggingRecords { inner, clock: runtime.clock().clone(), copied: self.copied.clone() }))
    }
}

/// The engine's records, which are read from a copy.
struct LaggingRecords {
    inner: Arc<dyn RecordStore>,
    clock: Clock,
    copied: Arc<Mutex<CopiedRecords>>,
}

impl RecordStore for LaggingRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        let mut reply = self.inner.read(kind, name);
        if let Reply::Ready(Some(Ok(stored))) = &mut reply {
            let (now, now_micros) = (self.clock.now(), stored.now_micros);
            let mut copied = self.copied.lock();
            let copy = copied.entry((kind, name.clone())).or_insert_with(|| (now, stored.clone()));
            if now.since(copy.0) >= LAG {
                *copy = (now, stored.clone());
            }
            // The version is not the copy's, or no change would be written that rests on it.
            *stored = StoredRecord { now_micros, version: stored.version, ..copy.1.clone() };
        }
        reply
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        self.inner.write(kind, name, record, version)
    }
}
