//! The seam between core and engines: the traits that an engine implements.
//!
//! Engines differ in two things: how a claim waits (queue, notification, blocking call, polling) and what keeps a claim alive
//! (lease, session, connection). Four small traits hide the difference, and an engine writes only requests for them:
//!
//! - A [`Backend`] is the engine. It makes a place for each claim.
//! - A [`Place`](crate::Place) is the engine's side of one claim: it asks for the grant, asks to leave, and says when asking again is
//!   worthwhile.
//! - A [`Session`] renews the claims that rest on it.
//! - An [`Operator`] answers what operators ask. All of its methods are optional.
//!
//! Core owns everything else: the [life of a claim](crate::ClaimEntry) above its place, the wait loop, the caller's deadline, the schedule of
//! renewals, cleanup, and composition. A layer, such as a quorum, is itself a [`Backend`].
//!
//! # The life of a claim
//!
//! ```text
//!                 ask                         ask
//!   enter ──> (nothing) ──────> queued ─────────────────> holding ──release──> released
//!                 │  └───────────────────────────────────────^ │
//!                 │                │                           ├──detach──> detached lease ──attach──> holding
//!                 │                ├──withdraw──> withdrawn    │
//!                 │                │                           │
//!                 └────────────────┴──── deleted, expired or evicted at the engine ──> gone
//! ```
//!
//! [`ClaimEntry`](crate::ClaimEntry) keeps this state, so that a place does not: it repeats a request whose reply was lost, keeps a request
//! whose caller went away, answers what it knows without a request, and decides whether a release that found nothing was the one that
//! removed the claim. A layer that makes claims of its own at its engines, such as a quorum, writes a
//! place, too. One that passes on the entries of another backend implements the wider trait [`Entry`] itself.
//!
//! # The contract in short
//! - Each request is idempotent for the id of the claim, because a request whose reply was lost is repeated.
//! - A future may be dropped at any await. The kind of the [`Request`](crate::Request) says what happens then: an engine that handles the
//!   requests of a claim in the order of their sending returns [`Drops`](crate::Request::Drops), and one where a later request may overtake
//!   an earlier one returns [`Kept`](crate::Request::Kept).
//! - An error without an [effect](Error::effect) says that the claim is where it was before: in the queue, holding, or not at the engine.
//!   Each request that may have reached the engine fails as [`unknown`](Error::unknown), also one to leave, because that decides whether a
//!   release that finds nothing reports "released" or "lost". A request of several steps is unknown as soon as one of them was.
//! - [`Place::leave`](crate::Place::leave) sends with its first poll. That poll may happen in a `Drop`, without an async runtime, which is
//!   needed only to wait for the reply.
//! - The engine's own requests have a time limit: no future waits without a limit.
//! - Validity counts from *before* the request was sent ([`Claim::confirm`]), for the `ttl` that was sent with it.
//! - Timers are those of [`Runtime::clock`](crate::Runtime::clock). Tasks run by [`Runtime::spawn`](crate::Runtime::spawn).
//! - No poll blocks for long, because one thread renews all leases of a client. A driver that blocks runs on a thread of the engine. A short
//!   call on a local file may run in the poll, with a time limit.
//!
//! # Decisions of an engine
//! - **The clock of a lease.** A server measures the `ttl` by its own clock. An engine without a server can store a
//!   [`Moment`]: the processes of one machine count it from the same boot. It stores the id of the boot beside it,
//!   because moments of different boots do not compare. The methods of [`Backend`] have no claim. An engine that needs
//!   a clock there keeps the one of the [`Runtime`](crate::Runtime) that it was opened with.
//! - **Waiters that die.** A claim in the queue has a lease as a grant has, and the engine removes it at its end.
//!   Otherwise a process that was killed in the queue blocks all claims behind it. [`Session::renew`] renews both.
//! - **The order of grants.** In an engine that states [`fair`](Capabilities::fair), tokens follow the order of the queue, also
//!   among claims that hold together. Such an engine grants all [`winners`](admission::winners) in each step that changes the
//!   queue, and the waiters collect their grants later. Or it makes the token from the place in the queue. If each waiter
//!   only asks [`admit`](admission::admit), a second reader may get its token before the first one. The case
//!   `mixed_history` finds that.
//! - **Many waiters.** An engine that polls lets a waiter pause longer the more claims are ahead. The layer
//!   [`Limit`](crate::Limit) keeps all but a few waiters of a process away from the engine. The case `counter` has 200
//!   waiters for one name. The case `many_locks` renews 300 grants: send one request for a whole round, not one per claim.
//!
//! # Mechanisms of core
//!
//! An engine uses these instead of its own:
//!
//! | need | mechanism |
//! |---|---|
//! | decide who may hold a resource | [`admission`] |
//! | store a claim's holder, mode and reason as text, and show it to operators | [`ClaimRecord`](crate::ClaimRecord) |
//! | keep long queues away from the engine | [`Limit`](crate::Limit) |
//! | pause between attempts to connect | [`Backoff`](crate::Backoff) |
//! | share one request among callers that ask at the same time | [`SingleFlight`](crate::SingleFlight) |
//! | finish a request whose future was dropped | [`Finish`](crate::Finish) |
//! | repeat, keep and remove the requests of a claim | [`ClaimEntry`](crate::ClaimEntry) |
//! | remove what a layer's dropped future left | [`clean_up`](crate::clean_up) |
//! | keep small records beside the locks | [`RecordStore`] |
//! | keep the runs of a resource in such records | [`KeptRuns`](crate::KeptRuns) |
//! | read the parts and options of a URL | [`BackendUrl`](crate::BackendUrl) |
//!
//! # A complete engine
//!
//! To write an engine, copy this one. It passes the conformance suite of `fencepost-testkit`. The file
//! `crates/fencepost-testkit/tests/toy.rs` puts it under the suite.
//!
//! ```
#![doc = include_str!("toy_engine.rs")]
//! # fn main() {}
//! ```

pub mod admission;
pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod claim_id;
pub(crate) mod degraded;
pub(crate) mod kept_runs;
pub(crate) mod limit;
pub(crate) mod ordered_queue;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod reply;
pub(crate) mod waiters;
pub(crate) mod withdrawal;

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::backend::records::RecordStore;
pub use crate::backend::reply::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::Report;
use crate::runtime::Runtime;
use crate::time::Moment;
use crate::token::Token;

const NO_LIMITS: &str = "this engine stores no limits of permits";

/// An engine, or a layer over one.
pub trait Backend: Send + Sync + 'static {
    /// Returns the capabilities of this deployment.
    fn capabilities(&self) -> Capabilities;

    /// Makes an entry for `claim`. No I/O: the first [`Entry::attempt`] sends the first request. The entry owns all that the
    /// server will ever store for the claim.
    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry>;

    /// Makes an entry for a detached lease: the claim has the id of its grant. [`Entry::attempt`] attaches to the grant for the
    /// claim's `ttl`, or answers [`Attempt::Gone`]. It never makes a new grant. If the claim is not [`renewed`](Claim::renewed),
    /// the grant stays detached and is only extended. A grant in another mode than the claim's is `Gone`. The token is the one
    /// that the engine stores. Not called for an engine without [detached leases](Capabilities::detach).
    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry>;

    /// Returns what answers the requests of operators. A layer that changes none of them returns the inner one.
    fn operator(&self) -> &dyn Operator;

    /// Checks by one read that the engine answers. A layer that makes claims wait before they reach the engine uses it to notice
    /// that the engine fails. A connection that is down is attempted at once, without a pause after earlier failures: the failure shows
    /// that the engine was away after this call began.
    ///
    /// # Errors
    /// The engine's error, or one that says that the engine does not answer.
    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::ready(Ok(()))
    }

    /// Moves the connections that run on the caller's async runtime to the client's own thread. A request without a reply is sent
    /// again there. The caller may block its runtime after this call. It does not wait.
    fn leave_caller_runtime(&self) {}

    /// Closes connections and files. Entries that still exist may fail.
    fn close(&self) -> Reply<'_, ()> {
        Reply::ready(())
    }
}

/// What operators ask of an engine. Each method is optional: core calls none that the [capabilities](Capabilities) exclude.
pub trait Operator: Send + Sync {
    /// Returns the claims on a resource, as operators see them. A free resource has none.
    fn inspect<'a>(&'a self, _name: &'a Name) -> Reply<'a, Result<Info>> {
        not_for_operators()
    }

    /// Returns the claims on a resource, for a caller that does not need its runs. A layer that reads them apart leaves them out.
    fn inspect_claims<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.inspect(name)
    }

    /// Lists the resources with claims whose names begin with `prefix`, sorted by name.
    fn list<'a>(&'a self, _prefix: &'a str, _page: &'a Page) -> Reply<'a, Result<Listing>> {
        not_for_operators()
    }

    /// Evicts the holder whose grant has `token`, and no other. The holder's validity ends [with](crate::Validity::end_with)
    /// [`Loss::Evicted`](crate::Loss::Evicted) and `how.reason`, at the latest with its next renewal. Usually that holder is
    /// in another process. So the engine stores the mark and the reason until the lease ends. With [`how.now`](Eviction::now)
    /// the resource is free at once, and a holder that cannot be told then may learn only
    /// [`Loss::Deleted`](crate::Loss::Deleted).
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) when no grant of `name` has that token.
    fn evict<'a>(&'a self, _name: &'a Name, _token: Token, _how: &'a Eviction) -> Reply<'a, Result<()>> {
        not_for_operators()
    }

    /// Returns the [stored limit](Operator::set_permits) of the permits of `name`.
    fn stored_permits<'a>(&'a self, _name: &'a Name) -> Reply<'a, Result<Option<u32>>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, NO_LIMITS)))
    }

    /// Stores the limit of the permits of `name`, or forgets it. While it is stored, each claim for permits is
    /// [judged by it](admission::Mode::limited). Waiters that fit now are granted. Holders keep their permits. A claim that asks for
    /// more than the limit gets [`Error::over_limit`]. A waiter that does is [`Gone`](Attempt::Gone), so it blocks no other claim.
    /// The limit stays when the last claim has left.
    fn set_permits<'a>(&'a self, _name: &'a Name, _limit: Option<u32>) -> Reply<'a, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, NO_LIMITS)))
    }

    /// Returns the engine's store of small records, for a client with this runtime. `None`: it has none.
    fn records(&self, _runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        None
    }

    /// Examines the deployment: its configuration and health, and what they mean for locks. A part that cannot be examined is a
    /// finding. Nothing is changed.
    ///
    /// # Errors
    /// Only if nothing at all could be examined.
    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::ready(Ok(Report::default()))
    }
}

fn not_for_operators<T>() -> Reply<'static, Result<T>> {
    Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine does not answer operators")))
}

/// One claim at the engine, queued or holding, as core and the layers see it. An engine writes a [`Place`](crate::Place) instead and
/// returns a [`ClaimEntry`](crate::ClaimEntry) over it.
pub trait Entry: Send {
    /// Asks the engine for the grant, or collects a grant that was pushed. A grant confirms the claim's validity. A place in the
    /// queue may schedule its renewal ([`waiting`](crate::Validity::waiting)). If the claim does not join the queue, a blocked attempt leaves
    /// nothing behind. A reply that is ready says that the engine was not asked. One that comes was sent with its first poll, and says
    /// that the engine answers.
    ///
    /// # Errors
    /// Without an [effect](Error::effect) the claim is where it was before. Otherwise it may be at the engine.
    ///
    /// # Cancel safety
    /// Safe. The request may still take effect: call this again, or withdraw.
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>>;

    /// Is ready when another attempt is worthwhile, also when the claim's validity has ended. This is a hint: it may be ready without a
    /// reason, but not time after time. A wake-up between the answer of an attempt and this call is not lost.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Returns why the last attempt had no answer within its time, if the entry knows.
    fn why_silent(&self) -> Option<Error> {
        None
    }

    /// Returns the session that keeps the claim alive, queued or holding. `None`: nothing has to.
    fn renewal(&self) -> Option<Renewal>;

    /// Removes the claim from the engine, granted or not. After `Err` call this again: unless the error has an
    /// [effect](Error::effect), nothing was removed.
    ///
    /// # Cancel safety
    /// The first poll sends. Dropped later, it takes effect or not: call this again to know.
    fn withdraw(&mut self) -> Reply<'_, Result<Removed>>;

    /// Removes the claim after its work is done, or its guard was dropped. An engine whose grant is a transaction commits it here if
    /// the claim [was released](Claim::is_released), and else rolls it back.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.withdraw()
    }

    /// Detaches the grant from this process: it ends `claim.ttl()` after this request, unless a program that knows the claim's id
    /// extends it. After `Ok` the entry owns nothing.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the claim holds the resource no more.
    fn detach(&mut self) -> Reply<'_, Result<()>>;

    /// Makes `to` the token of this claim's grant, so that each later grant of the resource has a greater one. Quorums use it. No
    /// two grants get the same token. A claim that votes [again](crate::Vote::again) may get a smaller token than it has, if it
    /// holds the resource alone; the resource's greatest token stays.
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) if another claim got that token or a greater one, or if this claim holds the resource
    /// no more.
    fn raise(&mut self, _to: Token) -> Reply<'_, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine has no way to raise a token")))
    }

    /// Asks for the claim's shared grant to become exclusive, or collects that. The claim is marked at the engine until all other holders
    /// have left. Meanwhile the engine admits no claim, so the upgrade goes before all that wait. Then the grant is exclusive, with a
    /// new token, greater than all before. The claim's lease, validity and renewal go on. [`poll_wait`](Entry::poll_wait)
    /// hints that another call is worthwhile. The mark ends with the claim's lease, release or eviction. With `join` false a
    /// blocked call leaves no mark.
    ///
    /// An engine can treat a marked claim as an exclusive holder beside shared ones: [`admit`](admission::admit) then admits
    /// nobody, and another upgrade finds it.
    ///
    /// # Errors
    /// [`is_upgrade_conflict`](Error::is_upgrade_conflict) if another holder is marked. The claim stays shared.
    ///
    /// # Cancel safety
    /// Safe. The request may still take effect: call this again, or [`downgrade`](Entry::downgrade).
    fn upgrade(&mut self, _join: bool) -> Reply<'_, Result<Attempt>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine has no way to upgrade a lock")))
    }

    /// Makes the claim's grant shared, and removes the mark of an [`upgrade`](Entry::upgrade). The grant never ends meanwhile. It gets the
    /// `token` that its holder knows: an upgrade whose reply was lost may have drawn another one. Waiting claims that fit beside it are admitted. A shared grant without a mark stays as it is. After `Err` the
    /// outcome is unknown: call this again.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the claim holds the resource no more.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    fn downgrade(&mut self, _token: Token) -> Reply<'_, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine has no way to downgrade a lock")))
    }

    /// Returns the engine's own extension: a type of its crate, to be downcast to.
    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        None
    }
}

/// The outcome of an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// The claim holds its resource, with this fencing token.
    Granted(Token),
    /// The claim waits.
    Blocked {
        /// When to attempt again at the latest. `None`: only when woken.
        again: Option<Moment>,
    },
    /// The claim is no longer at the engine: expired, deleted, evicted. Core starts again with a fresh id.
    Gone,
}

/// The outcome of [`Entry::withdraw`] or [`Entry::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// A grant, now or by an earlier call for the same claim.
    Released,
    /// A place in the queue.
    Withdrawn,
    /// Nothing.
    Nothing,
}

/// A claim and the session that keeps it alive. An engine makes it, layers pass it on.
#[derive(Clone)]
pub struct Renewal {
    /// The claim to renew.
    pub claim: Arc<Claim>,
    /// The session that renews it.
    pub session: Arc<dyn Session>,
}

/// The liveness unit of grants: a connection, a session or a lease. When it ends, its grants end.
pub trait Session: Send + Sync {
    /// Returns the id of the unit: claims of sessions with the same id are renewed by one round, through one of those
    /// sessions. No two engines of a client have the same id: a quorum has several engines.
    fn id(&self) -> u64;

    /// Renews the claims in one round. Each answer goes to the claim's validity as it arrives: confirmed, waiting, or ended. A
    /// renewal never creates: a claim that the engine no longer knows ends as lost. A claim that is not
    /// [`renewed`](Claim::renewed) comes here only when its user extends it: its lease then ends `ttl` after this request. A
    /// renewal never shortens a lease, so two renewals may overtake each other.
    ///
    /// # Errors
    /// The round failed as a whole, and the missing answers are unknown. Core tries again soon.
    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>>;
}
