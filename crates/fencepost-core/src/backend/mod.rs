//! The seam between core and engines: the traits that an engine implements.
//!
//! Engines differ in two things: how a claim waits (queue, notification, blocking call, polling) and what keeps a claim alive
//! (lease, session, connection). Four small traits hide the difference, and an engine writes only requests for them:
//!
//! - A [`Backend`] is the engine. It makes an entry for each claim, over a place.
//! - A [`Place`](crate::Place) is the engine's side of one claim: it asks for the grant, asks to leave, and says when asking again is
//!   worthwhile.
//! - A [`Session`] renews the claims that rest on it.
//! - An [`Operator`] answers what operators ask. All of its methods are optional.
//!
//! Core owns everything else: the [life of a claim](crate::Entry) above its place, the wait loop, the caller's deadline, the schedule of
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
//! The picture leaves out that a holder may withdraw as if it had never been granted, and convert its grant to another mode.
//!
//! The concrete [`Entry`] keeps this state, so that a place does not: its callers repeat a request whose reply was lost, and it keeps a request
//! whose caller went away, answers what it knows without a request, decides whether a release that found nothing was the one that
//! removed the claim, and leaves nothing behind when it is dropped. A layer owns entries of its engines and writes a place, too, because an
//! entry is a place itself: such a place passes on what it does not change.
//!
//! # The contract in short
//! - Each request is idempotent for the id of the claim, because a request whose reply was lost is repeated.
//! - A future may be dropped at any await. The kind of the [`Request`](crate::Request) says what happens then: an engine that handles the
//!   requests of a claim in the order of their sending returns [`Drops`](crate::Request::Drops), and one where a later request may overtake
//!   an earlier one returns [`Kept`](crate::Request::Kept).
//! - An error without an [effect](crate::Error::effect) says that the claim is where it was before: in the queue, holding, or not at the engine.
//!   Each request that may have reached the engine fails as [`unknown`](crate::Error::unknown), also one to leave, because that decides whether a
//!   release that finds nothing reports "released" or "lost". A request of several steps is unknown as soon as one of them was.
//! - [`Place::leave`](crate::Place::leave) sends with its first poll. That poll may happen in a `Drop`, without an async runtime, which is
//!   needed only to wait for the reply.
//! - The engine's own requests have a time limit: no future waits without a limit.
//! - Validity counts from *before* the request was sent ([`Claim::confirm`]), for the `ttl` that was sent with it. Both are read once,
//!   because the user may change the `ttl` while the request is under way.
//! - Timers are those of [`Runtime::clock`](crate::Runtime::clock). Tasks run by [`Runtime::spawn`](crate::Runtime::spawn).
//! - No poll blocks for long, because one thread renews all leases of a client. A driver that blocks runs on a thread of the engine. A short
//!   call on a local file may run in the poll, with a time limit.
//!
//! # Decisions of an engine
//! - **The clock of a lease.** A server measures the `ttl` by its own clock. An engine without a server can store a
//!   [`Moment`](crate::Moment): the processes of one machine count it from the same boot. It stores the id of the boot beside it,
//!   because moments of different boots do not compare. The methods of [`Backend`] have no claim. An engine that needs
//!   a clock there keeps the one of the [`Runtime`](crate::Runtime) that it was opened with.
//! - **Waiters that die.** A claim in the queue has a lease as a grant has, and the engine removes it at its end.
//!   Otherwise a process that was killed in the queue blocks all claims behind it. [`Session::renew`] renews both.
//! - **The order of grants.** In an engine that states [`fair`](Capabilities::fair), tokens follow the order of the queue, also
//!   among claims that hold together. Such an engine grants all [`winners`](admission::winners) in each step that changes the
//!   queue, and the waiters collect their grants later. Or it makes the token from the position in the queue. If each waiter
//!   only asks [`admit`](admission::admit), a second reader may get its token before the first one. The case
//!   `mixed_history` finds that.
//! - **Many waiters.** An engine that polls lets a waiter pause longer the more claims are ahead. A
//!   [`LocalQueue`](crate::LocalQueue) keeps all but a few waiters of a process away from the engine. The case `counter` has 200
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
//! | keep long queues away from the engine | [`LocalQueue`](crate::LocalQueue) |
//! | pause between attempts to connect | [`Backoff`](crate::Backoff) |
//! | share one request among callers that ask at the same time | [`SingleFlight`](crate::SingleFlight) |
//! | finish a request whose future was dropped | [`Finish`](crate::Finish) |
//! | repeat and keep the requests of a claim, remove what a dropped future left | [`Entry`] |
//! | keep small records beside the locks | [`RecordStore`](crate::RecordStore) |
//! | keep the runs of a resource | nothing: core keeps them in the engine's [records](Operator::records) |
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
pub(crate) mod attempt;
pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod claim_id;
pub(crate) mod cleaning_times;
pub(crate) mod degraded;
pub(crate) mod fixed_lease;
pub(crate) mod local_queue;
pub(crate) mod operator;
pub(crate) mod ordered_queue;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod reply;
pub(crate) mod session;
pub(crate) mod waiters;

use std::sync::Arc;

pub use crate::backend::attempt::{Attempt, Removed};
use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
pub use crate::backend::operator::Operator;
pub use crate::backend::reply::Reply;
pub use crate::backend::session::{Renewal, Session};
use crate::entry::Entry;
use crate::entry::place::How;
use crate::error::Result;

/// An engine, or a layer over one.
pub trait Backend: Send + Sync + 'static {
    /// Returns the capabilities of this deployment.
    fn capabilities(&self) -> Capabilities;

    /// Makes the entry of `claim`, over a [`Place`](crate::Place). No I/O: the first [`Entry::attempt`] sends the first request. The entry owns
    /// all at the server that decides about the claim's grant.
    ///
    /// With [`How::Attach`] the claim has the id of a detached grant. [`Entry::attempt`] attaches to that grant for the
    /// claim's `ttl`, or answers [`Attempt::Gone`]. An engine without [detached leases](Capabilities::detach) is not asked for that.
    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry;

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
