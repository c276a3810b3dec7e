//! The seam between core and engines: the validity of one claim.
//!
//! Engines differ in two things: how one waits (queue, notify, block, poll) and what keeps one alive (lease, session,
//! connection). Three object-safe traits hold the difference: [`Backend`], [`Entry`] (one claim at the engine, queued *or*
//! holding) and [`Session`]. All policy is built once above them: the wait loop, the caller's deadline, renewal (renewer),
//! cleanup (cleaner), composition. A layer is itself a [`Backend`].
//!
//! # The contract in short
//! - Every step is idempotent for the claim's id: a lost reply is repaired by asking again.
//! - Every future may be dropped at any await and every method called again afterwards. What was sent may still take
//!   effect; the entry knows that it may.
//! - [`Entry::withdraw`] and [`Entry::release`] send with their first poll, which may happen without any async runtime (in a
//!   `Drop`): they must not need one until they wait for the reply.
//! - The innermost layer times its requests out: no future waits forever for an engine.
//! - Validity is counted from *before* the request was sent ([`Claim::confirm`]), for the `ttl` that was sent with it.
//! - Timers are those of [`Runtime::clock`](crate::Runtime::clock), tasks are spawned on [`Runtime::host`](crate::Runtime::host).

pub mod admission;
pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod claim_id;
pub(crate) mod limit;
pub(crate) mod local_queue;
pub(crate) mod record;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::backend::capabilities::Capabilities;
use crate::backend::claim::Claim;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::operator::info::{Eviction, Info, Listing, Page};
use crate::operator::report::Report;
use crate::time::Moment;
use crate::token::Token;
use crate::validity::Validity;

/// An answer of an engine: there already, or a future. What is there already costs no allocation.
pub enum Reply<'a, T> {
    /// There already; `None` once taken.
    Ready(Option<T>),
    /// To come.
    Coming(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Reply<'a, T> {
    /// An answer that is there already.
    pub fn ready(value: T) -> Reply<'a, T> {
        Reply::Ready(Some(value))
    }

    /// An answer to come.
    pub fn coming(future: impl Future<Output = T> + Send + 'a) -> Reply<'a, T> {
        Reply::Coming(Box::pin(future))
    }
}

impl<T: Unpin> Future for Reply<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Reply::Ready(value) => {
                Poll::Ready(value.take().expect("a reply is polled no more once it was ready"))
            }
            Reply::Coming(future) => future.as_mut().poll(cx),
        }
    }
}

/// An engine, or a layer over one.
pub trait Backend: Send + Sync + 'static {
    /// What is true of this deployment.
    fn capabilities(&self) -> Capabilities;

    /// A new entry for `claim`. No I/O: nothing is at the engine before the first [`Entry::attempt`], and the entry owns
    /// all server state there will ever be for the claim.
    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry>;

    /// An entry for a grant that exists already: the claim carries the id of a detached lease. [`Entry::attempt`] takes it up
    /// again for the claim's `ttl`, or answers [`Attempt::Gone`]; it never makes a new grant. Taken up by a claim that is not
    /// [`renewed`](Claim::renewed) it stays detached and is only extended. A grant in another mode than the claim's is not taken
    /// up: `Gone`. The answer has the grant's token as the engine keeps it.
    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry>;

    /// A resource as an operator sees it; a resource that nobody claims has no claims.
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>>;

    /// The resources whose names begin with `prefix` and that are held or waited for, sorted by name.
    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>>;

    /// Evicts the holder whose grant has `token`, and only that. `how.reason` says who evicts and why: the holder's validity ends
    /// [with](Validity::end_with) it.
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) when no grant of `name` has that token.
    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>>;

    /// Asks the engine for an answer of any kind, at the price of one read. A layer whose claims wait before the engine learns by it that
    /// the engine fails.
    ///
    /// # Errors
    /// The engine's error, or one that says that it does not answer.
    fn reach(&self) -> Reply<'_, Result<()>> {
        Reply::ready(Ok(()))
    }

    /// Looks at the deployment itself: how it is set up and how it fares, and what that means for locks. What cannot be looked at
    /// is a finding, no error. Nothing is changed.
    ///
    /// # Errors
    /// Only where nothing at all could be looked at.
    fn examine(&self) -> Reply<'_, Result<Report>> {
        Reply::ready(Ok(Report::default()))
    }

    /// Nothing will be asked any more: lets go of connections and files. Entries that still exist may fail.
    fn close(&self) -> Reply<'_, ()> {
        Reply::ready(())
    }
}

/// One claim at the engine, queued or holding.
pub trait Entry: Send {
    /// Asks, asks again, or collects what was pushed. A grant confirms the claim's validity, a place in line may
    /// ([`Validity::waiting`]). If the claim does not join the line, a blocked attempt leaves nothing behind.
    ///
    /// # Cancel safety
    /// May be dropped; the request may take effect all the same. Ask again, or withdraw.
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>>;

    /// Ready when it is worth asking again. A hint: it may be ready for nothing, and core holds the timer, `until` being
    /// when it will ask again anyway. A wake that came between an attempt's answer and this call is not lost.
    fn poll_wait(&mut self, cx: &mut Context<'_>, until: Moment) -> Poll<()>;

    /// What keeps the claim alive, queued or holding. `None`: nothing has to.
    fn renewal(&self) -> Option<Renewal>;

    /// Leaves nothing of the claim at the engine, granted or not. `Err`: unknown, call again.
    ///
    /// # Cancel safety
    /// The first poll sends. Dropped after that, it takes effect or not; call again to know.
    fn withdraw(&mut self) -> Reply<'_, Result<Removed>>;

    /// The same with the work done; engines whose grant is a transaction commit it here.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.withdraw()
    }

    /// Cuts the grant loose from this process: from now on it ends `claim.ttl()` after this request unless somebody who
    /// knows the claim's id extends it. After `Ok` the entry owns nothing any more.
    fn detach(&mut self) -> Reply<'_, Result<()>>;

    /// Makes `to` the token of this claim's grant, so that every later grant of the resource has a greater one (for
    /// quorums). No two grants get the same token by it. A claim that votes [again](crate::Vote::again) may get a lesser one than
    /// it has, if it holds the resource alone; what the resource has given stays as great as it is.
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) if the resource has given that token or a greater one to another claim, or if this
    /// claim holds it no more.
    fn raise(&mut self, _to: Token) -> Reply<'_, Result<()>> {
        Reply::ready(Err(Error::new(ErrorKind::Unsupported, "this engine has no way to raise a token")))
    }

    /// The engine's own strength: a type of its crate, to be downcast to.
    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        None
    }
}

/// What an attempt came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// The claim holds its resource, with this fencing token.
    Granted(Token),
    /// It does not yet.
    Blocked {
        /// Ask again then at the latest. `None`: only when woken.
        again: Option<Moment>,
        /// How many claims stand before it, if known.
        ahead: Option<u32>,
    },
    /// Its place or grant is gone: purged as dead, deleted, evicted. Core begins anew with a fresh id.
    Gone,
}

/// What was there when a claim left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// A grant, released now (or earlier, by this same claim).
    Released,
    /// A place in line.
    Withdrawn,
    /// Nothing.
    Nothing,
}

/// A claim and the session that keeps it. Made by the engine, passed on by layers.
#[derive(Clone)]
pub struct Renewal {
    /// Whose validity is renewed.
    pub claim: Arc<Claim>,
    /// By what.
    pub session: Arc<dyn Session>,
}

/// What grants live and die with.
pub trait Session: Send + Sync {
    /// What is renewed together: a shard, a connection, a lease. Renewals with the same id go into one round.
    fn id(&self) -> u64;

    /// Its own validity. One that is finite proves all its claims; [`Validity::forever`] leaves each claim to its own.
    fn validity(&self) -> &Arc<Validity>;

    /// One round of renewal. Answers go to the lives as they arrive: confirmed, waiting, or ended. It never creates: what
    /// the engine does not know any more is ended as lost. A claim with a fixed lease (not
    /// [`renewed`](Claim::renewed)) comes here only when its user extends it: its lease then ends `ttl` after this request. A
    /// renewal never shortens a lease, so that two that overtake each other do no harm.
    /// `Err`: the round failed as a whole and the answers that are missing are unknown; core asks again soon.
    fn keep<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>>;
}
