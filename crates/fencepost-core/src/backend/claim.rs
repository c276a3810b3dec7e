//! One request for a resource.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::admission::Mode;
use crate::backend::claim_id::ClaimId;
use crate::backend::degraded::{Degraded, Mark};
use crate::backend::record::ClaimRecord;
use crate::error::Error;
use crate::name::Name;
use crate::operator::holder::{ClaimInfo, HolderInfo};
use crate::operator::run::{Run, RunEnd, RunOutcome};
use crate::runtime::Runtime;
use crate::time::{Moment, nanos};
use crate::token::Token;
use crate::validity::{Loss, State, Validity};

/// The values of [`Claim::converted`].
const AS_WANTED: u8 = 0;
const SHARED: u8 = 1;
const EXCLUSIVE: u8 = 2;

/// The next [`Claim::number`].
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A resource and how it is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which resource.
    pub name: Name,
    /// How.
    pub mode: Mode,
}

/// One request for one resource, with a fresh id.
pub struct Claim {
    /// Names it at the engine.
    pub id: ClaimId,
    /// The resource and how it is wanted.
    pub want: Want,
    /// Does it wait when it is blocked? If not, a blocked attempt leaves nothing at the engine.
    pub waits: bool,
    /// Is it granted at its arrival if it fits beside the holders, although others wait? If it does not fit, it waits as any other
    /// claim does. `true` only where [`Capabilities::barging`](crate::Capabilities::barging) says so. Engines ask
    /// [`is_unfair`](Claim::is_unfair).
    pub unfair: bool,
    /// Is the lease renewed by the renewer? If not, it ends on its own `ttl` after the grant.
    pub renewed: bool,
    /// The lock is one for readers and writers, also if this claim is exclusive: some engines keep those under other names than
    /// mutexes.
    pub read_write: bool,
    /// The number of replicas that must acknowledge the grant and each renewal before it counts. More than zero only where
    /// [`Capabilities::replicas`](crate::Capabilities::replicas) says so.
    pub replicas: u32,
    /// The holder as operators see it.
    pub holder: Arc<HolderInfo>,
    /// The reason as operators see it.
    pub reason: Option<Arc<str>>,
    /// The longest time for which its holder keeps it, as operators see it.
    pub max_hold: Option<Duration>,
    /// How long after its arrival it is granted at the latest, as operators see it. `None`: it may wait for any time.
    pub max_wait: Option<Duration>,
    /// Until when it is valid.
    pub validity: Arc<Validity>,
    /// The clock and the tasks of the client.
    pub runtime: Runtime,
    /// The number of the claim that a layer made, if this is its [part](Claim::part) at one engine. It tells nothing of an id.
    pub whole: Option<u64>,
    /// It is one node's share of a claim that a quorum makes: see the crate `fencepost-quorum`. `None`: it is for itself.
    pub vote: Option<Box<Vote>>,
    /// How long the engine is to keep the claim's [run](crate::Run) after its end. `None`: the engine keeps nothing of it, and
    /// spends nothing on it. Not `None` only where [`Capabilities::history`](crate::Capabilities::history) says so.
    pub history: Option<Duration>,
    /// Its work rests on the record of its run: without the record the grant fails. Of other claims the record never decides about
    /// the lock: an engine that cannot store it grants and releases all the same, and warns once.
    pub needs_run: bool,
    /// A number that the engine may note on the claim: a slot, a row. Core does not look at it.
    pub note: AtomicU64,
    /// The worth of its grant, if a layer made it while the engine was away.
    pub(crate) degraded: Mark,
    /// Identifies this claim in the process. Other claims may have its [`id`](Claim::id): those that are attached to one lease. Claims count
    /// up from the first, so that a simulation takes them in the same order each time.
    pub number: u64,
    reported: OnceLock<(i32, RunEnd)>,
    leaving: AtomicBool,
    waited: AtomicBool,
    lease_given: AtomicBool,
    ttl: AtomicU64,
    /// See [`longest_ttl`](Claim::longest_ttl).
    longest_ttl: AtomicU64,
    /// The mode in which it holds since an upgrade or a downgrade.
    converted: AtomicU8,
    /// The moment for which the renewer has scheduled its renewal. Zero: the renewer does not have the claim.
    pub(crate) scheduled: AtomicU64,
    /// The guards of one holder that share its grant.
    pub(crate) entered: AtomicU32,
}

impl Claim {
    /// A claim for one resource that waits, with a validity of its own.
    pub fn new(id: ClaimId, want: Want, ttl: Duration, holder: Arc<HolderInfo>, runtime: Runtime) -> Claim {
        Claim {
            id,
            want,
            waits: true,
            unfair: false,
            renewed: true,
            read_write: false,
            replicas: 0,
            holder,
            reason: None,
            max_hold: None,
            max_wait: None,
            validity: Arc::new(Validity::new()),
            runtime,
            whole: None,
            vote: None,
            history: None,
            needs_run: false,
            degraded: Mark::default(),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            reported: OnceLock::new(),
            leaving: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            lease_given: AtomicBool::new(false),
            note: AtomicU64::new(0),
            ttl: AtomicU64::new(nanos(ttl)),
            longest_ttl: AtomicU64::new(nanos(ttl)),
            converted: AtomicU8::new(AS_WANTED),
            scheduled: AtomicU64::new(0),
            entered: AtomicU32::new(0),
        }
    }

    /// Returns the resource, and how it is wanted.
    pub fn want(&self) -> &Want {
        &self.want
    }

    /// Returns the mode in which it holds: the wanted one, unless it was upgraded or downgraded.
    pub fn mode(&self) -> Mode {
        match self.converted.load(Ordering::Acquire) {
            SHARED => Mode::Shared,
            EXCLUSIVE => Mode::Exclusive,
            _ => self.want.mode,
        }
    }

    /// Notes that it holds exclusively or shared from now on.
    pub(crate) fn convert(&self, exclusive: bool) {
        self.converted.store(if exclusive { EXCLUSIVE } else { SHARED }, Ordering::Release);
    }

    /// Returns how many guards of its [`Holder`](crate::Holder) share its grant. `None`: its holder cannot enter it again.
    pub fn entered(&self) -> Option<u32> {
        Some(self.entered.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }

    /// Notes what its grant is worth, for the guard to [show](crate::GuardView::degraded): for a layer that grants while its engine is
    /// away. `None`: the engine has granted it.
    pub fn set_degraded(&self, degraded: Option<Degraded>) {
        self.degraded.set(degraded);
    }

    /// Returns how long its lease is.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Relaxed))
    }

    /// Changes the length of its lease, from the next renewal on.
    pub fn set_ttl(&self, ttl: Duration) {
        self.ttl.store(nanos(ttl), Ordering::Relaxed);
        self.longest_ttl.fetch_max(nanos(ttl), Ordering::Relaxed);
    }

    /// Returns the longest lease that it ever had. The engine may still have that one: it shortens no lease, and the reply to a request for
    /// a longer one may have been lost.
    pub(crate) fn longest_ttl(&self) -> Duration {
        Duration::from_nanos(self.longest_ttl.load(Ordering::Relaxed))
    }

    /// Notes the exit code of the work and how the work ended, for the engine to keep with the [run](Claim::history). The first report
    /// counts.
    pub fn report(&self, exit_code: i32, end: RunEnd) {
        let _ = self.reported.set((exit_code, end));
    }

    /// Returns what was reported.
    pub(crate) fn reported(&self) -> Option<(i32, RunEnd)> {
        self.reported.get().copied()
    }

    /// Its entry leaves the engine.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Returns whether its entry leaves the engine. A request for it that is under way may then end early, and its loss is reported to
    /// nobody.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Notes that another program may have the text of its lease from now on. A layer calls this for its parts, whose leases are given out
    /// with that of the whole.
    pub fn give_lease(&self) {
        self.lease_given.store(true, Ordering::Release);
    }

    /// Returns whether another program may have the text of its lease, and so may extend the grant, take it up or release it. An engine that
    /// confirms claims without a look at their grants looks at this one with each renewal.
    pub fn is_lease_given(&self) -> bool {
        self.lease_given.load(Ordering::Acquire)
    }

    /// It has waited in the process before the engine was asked.
    pub(crate) fn set_waited(&self) {
        self.waited.store(true, Ordering::Release);
    }

    /// Returns whether the engine may let it pass those that wait. A claim that has waited in the [local queue](crate::LocalQueue) is fair from
    /// then on, because others may have queued at the engine after it and before this request.
    pub fn is_unfair(&self) -> bool {
        self.unfair && !self.waited.load(Ordering::Acquire)
    }

    /// Returns how its run ends if that is now.
    pub(crate) fn outcome(&self) -> RunOutcome {
        let state = self.validity.state(self.runtime.clock().now());
        let lost = match state {
            State::Lost(_) if !self.validity.is_confirmed() => RunEnd::Exited,
            State::Lost(Loss::MaxHold) => RunEnd::MaxHold,
            State::Lost(Loss::Evicted) => RunEnd::Evicted,
            State::Lost(_) => RunEnd::Lost,
            State::Held | State::Suspect => RunEnd::Exited,
        };
        let end = self.reported().map(|(_, end)| end).filter(|end| *end != RunEnd::Exited);
        RunOutcome { exit_code: self.reported().map(|(code, _)| code), end: end.unwrap_or(lost) }
    }

    /// Makes the claim that a layer makes at one of its engines on behalf of this one: it asks for the same, and operators see the same
    /// of it. Its id, its validity, its vote and its replicas are its own, and the run is that of this one. No two parts of a claim have the same `number`,
    /// and all have the same [`whole`](Claim::whole).
    pub fn part(&self, number: u32) -> Claim {
        let (id, holder) = (self.id.derive(number), Arc::clone(&self.holder));
        let mut part = Claim::new(id, self.want.clone(), self.ttl(), holder, self.runtime.clone());
        (part.waits, part.renewed, part.read_write) = (self.waits, self.renewed, self.read_write);
        part.reason.clone_from(&self.reason);
        (part.max_hold, part.max_wait) = (self.max_hold, self.max_wait);
        // No part has this number. A layer over a layer keeps the number of the outermost claim.
        let whole = || (self.id.derive(u32::MAX).as_u128() >> 64) as u64;
        part.whole = self.whole.or_else(|| Some(whole()));
        part
    }

    /// Returns its [record](ClaimRecord::unchanging) as it is written. It is not kept, because a claim that holds needs it no more.
    pub fn record(&self) -> String {
        ClaimRecord::unchanging(self).to_text()
    }

    /// Describes it as operators see it, without what only its engine knows: the token, the times.
    pub fn info(&self) -> ClaimInfo {
        ClaimInfo {
            reason: self.reason.as_deref().map(str::to_owned),
            max_hold: self.max_hold,
            max_wait: self.max_wait,
            whole: self.whole,
            entered: self.entered(),
            ..ClaimInfo::new((*self.holder).clone(), self.mode())
        }
    }

    /// Describes its run, which was granted at `since_micros` of the engine's clock.
    pub(crate) fn run(&self, token: Token, since_micros: u64) -> Run {
        let reason = self.reason.as_deref().map(str::to_owned);
        Run::new(token, (*self.holder).clone(), reason, since_micros)
    }

    /// Returns whether it is valid by the client's clock. A claim that nothing was confirmed for, because it waits, is valid until its
    /// validity is [ended](Validity::end).
    pub fn is_valid(&self) -> bool {
        if self.validity.is_confirmed() {
            !matches!(self.validity.state(self.runtime.clock().now()), State::Lost(_))
        } else {
            self.validity.ended().is_none()
        }
    }

    /// Makes the error for a grant that is not at the engine any more: why it was lost, or that somebody deleted it.
    pub fn gone(&self) -> Error {
        let why = match self.validity.state(self.runtime.clock().now()) {
            State::Lost(why) => why,
            _ => Loss::Deleted,
        };
        Error::lost(self.want.name.clone(), why)
    }

    /// Makes the error of this claim's lost grant.
    pub(crate) fn lost_error(&self, why: Loss) -> Error {
        let name = self.want.name.clone();
        if why == Loss::Expired && !self.renewed {
            return Error::lost_as(
                name,
                why,
                &format_args!("its fixed lease of {:?} has expired", self.ttl()),
            );
        }
        self.validity.loss_error(name, why)
    }

    /// The engine confirmed the grant for `ttl` by a request sent at `sent`. Returns whether the claim lives. Take both
    /// *before* sending: the user may change the lease's length while the request is under way.
    pub fn confirm(&self, sent: Moment, ttl: Duration) -> bool {
        self.validity.confirm(self.runtime.clock(), sent, ttl)
    }
}

impl ClaimRecord {
    /// That of `claim`, which arrives now.
    pub fn of(claim: &Claim) -> ClaimRecord {
        ClaimRecord {
            id: Some(claim.id),
            mode: Some(claim.want().mode),
            since_micros: claim.runtime.clock().wall_micros(),
            ..ClaimRecord::unchanging(claim)
        }
    }

    /// That of `claim` without its id, its mode and its arrival, for engines that keep those in another form.
    pub fn unchanging(claim: &Claim) -> ClaimRecord {
        ClaimRecord {
            holder: (*claim.holder).clone(),
            reason: claim.reason.as_deref().map(str::to_owned),
            max_hold: claim.max_hold,
            max_wait: claim.max_wait,
            whole: claim.whole,
            ..ClaimRecord::default()
        }
    }
}

/// The knowledge of one node of a quorum about the whole claim.
///
/// An engine that supports votes never hands the resource to such a claim: it grants on being asked, remembers who was refused
/// (if the claim [waits](Claim::waits)) and wakes the oldest of those when it is worth asking again. Lines on every node,
/// with contenders in different order, would lock each other out.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Vote {
    /// Its position in the one order of all claims: the older the claim, the smaller. It decides who yields when a vote is split, and
    /// nothing else: clocks that differ cost time, not safety.
    pub order: u64,
    /// The token that the quorum would like to give, so that all nodes give the same; zero: none. A node takes it if it is
    /// above all that it has given for the resource (and near its own clock, if that makes its tokens).
    pub proposal: AtomicU64,
    /// Answered by the engine when it blocks the claim: the order of the oldest claim that stands in the way. Zero: unknown.
    pub rival: AtomicU64,
    /// The claim holds already, without the vote of this node, which lost it or never gave it. Now the node is asked for its vote, with the
    /// claim's token as the proposal, which is mostly an old one. See [`Entry::raise`](crate::Entry::raise).
    pub regains: bool,
}

impl Vote {
    /// Makes a vote with this [order](Vote::order) and [proposal](Vote::proposal), for a claim that does not hold yet.
    pub fn new(order: u64, proposal: u64) -> Vote {
        Vote { order, proposal: proposal.into(), ..Vote::default() }
    }

    /// Makes it a vote for a claim that holds already: see [`Vote::regains`].
    #[must_use]
    pub fn regains(mut self, regains: bool) -> Vote {
        self.regains = regains;
        self
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("id", &self.id)
            .field("want", &self.want)
            .field("ttl", &self.ttl())
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NoTasks;
    use crate::time::Clock;

    fn claim(clock: &Clock, ttl: Duration) -> Claim {
        let runtime = Runtime::for_client(1, clock.clone(), Arc::new(NoTasks));
        let want = Want { name: Name::new("stock").unwrap(), mode: Mode::Exclusive };
        Claim::new(runtime.fresh_id(), want, ttl, HolderInfo::labelled("test"), runtime.clone())
    }

    #[test]
    fn a_claim_that_waits_is_valid_and_stays_so_when_asked() {
        let (clock, ttl) = (Clock::manual(), Duration::from_secs(30));
        let claim = claim(&clock, ttl);
        assert!(claim.is_valid());
        assert!(claim.confirm(clock.now(), ttl), "asking has not ended it");
        assert!(claim.is_valid());
        claim.validity.end(Loss::Deleted);
        assert!(!claim.is_valid());
    }

    #[test]
    fn a_cleanup_lasts_as_long_as_the_longest_lease_that_was_asked_for() {
        let (clock, hour) = (Clock::manual(), Duration::from_secs(3_600));
        let claim = claim(&clock, Duration::from_secs(30));
        claim.set_ttl(hour);
        // The extension had no reply, so the lease counts as it was before.
        claim.set_ttl(Duration::from_secs(30));
        assert!(crate::entry::cleanup::cleanup_deadline(&claim) > clock.now() + hour);
    }
}
