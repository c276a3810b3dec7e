//! What an engine writes for one claim: the requests of its protocol.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::backend::attempt::{Attempt, Removed};
use crate::backend::reply::Reply;
use crate::backend::session::Session;
use crate::entry::leave_requests::Found;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;

/// The engine's side of one claim. It sends requests, and keeps nothing that the entry above it knows.
///
/// The [`Entry`](crate::Entry) above it keeps what was asked and answered. It makes one request at a time, and never asks what it
/// knows: a claim that holds is not asked for again, and one that has left is not asked to leave. So a place keeps only what its next
/// request needs, as its row, its node or its session, and not whether the claim holds or has left. A connection that repeats a request by
/// itself says so in [`Left::repeated`].
///
/// The methods return a [`Request`], whose kind says what becomes of the request when its caller goes away.
pub trait Place: Send {
    /// Asks for the grant, or collects a grant that was pushed. Called again while the claim waits, and after a lost reply: the same claim
    /// then gets the same answer. A grant [confirms](crate::Claim::confirm) the claim. If the claim is queued, the engine may schedule the
    /// renewal of its position ([`waiting`](crate::Validity::waiting)). If the claim does not wait, a blocked request leaves nothing at the
    /// engine, also of an earlier request whose reply was lost. A ready answer means that the engine was not asked, unless the engine always answers on the spot.
    ///
    /// For a claim that [attaches](How::Attach), this takes up the detached grant for the claim's `ttl`, or answers
    /// [`Attempt::Gone`]. It never makes a new grant. If the claim is not [`renewed`](crate::Claim::renewed), the grant stays detached and is
    /// only extended. A grant in another mode than the claim's is `Gone`.
    ///
    /// # Errors
    /// Without an [effect](Error::effect) the claim is where it was before. Otherwise it may be at the engine.
    fn ask(&mut self) -> Request<'_, Attempt>;

    /// Is ready when asking again is worthwhile. This is a hint: it may be ready without news now and then. If it always were, the
    /// loop would ask without a pause. A wake-up between the answer of a request and this call is not lost. Not called while core awaits a
    /// request, but maybe after it has dropped one.
    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Removes the claim from the engine, granted or not, or detaches its grant. `may_have_left`: an earlier request to
    /// withdraw or release it may have taken effect, or may still arrive. This is `false` for a request to detach. Not called for a claim that asks
    /// for a grant of its own and was never asked for. A claim that attaches may be asked to leave first.
    ///
    /// The first poll sends, unless a request of this claim is under way that this one must not overtake. That poll may happen in a `Drop`,
    /// without an async runtime.
    ///
    /// # Errors
    /// Without an [effect](Error::effect) nothing was removed. Otherwise the claim may have been removed: that decides whether a later
    /// request that finds nothing reports "released" or "lost".
    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left>;

    /// Returns what keeps the claim alive while it waits, or while it `holds`. `None`: nothing has to.
    fn session(&self, holds: bool) -> Option<Arc<dyn Session>>;

    /// Converts the grant of a claim that holds: to another mode, or to another token. An engine without upgrades and votes need not write it.
    ///
    /// # Errors
    /// [`is_upgrade_conflict`](Error::is_upgrade_conflict) if another holder is marked already: the claim stays shared.
    fn convert(&mut self, _to: Conversion) -> Request<'_, Attempt> {
        Request::ready(Err(Error::new(ErrorKind::Unsupported, "this engine has no way to upgrade a lock")))
    }

    /// Core asks no more for this claim, which may still be at the engine: its cleanup was given up, refused or cut short, or its entry was
    /// told to stay. `asking`: a request for the grant was sent and had no reply. An engine whose leases end by themselves need not write it. One
    /// where other claims can keep this one alive [removes](crate::remove_abandoned) it in the background.
    fn abandon(&mut self, _asking: bool) {}

    /// Returns why the last request had no answer within its time, if that is known.
    fn why_silent(&self) -> Option<Error> {
        None
    }

    /// Returns the engine's own extension, while the claim holds: a type of its crate, to be downcast to.
    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        None
    }
}

/// A request of a [`Place`]. It has a time limit of its own. One that is dropped before its first poll must have changed nothing, because
/// core makes requests that it never polls.
pub enum Request<'a, T> {
    /// Answered on the spot. It costs no allocation.
    Ready(Result<T>),
    /// Dropped together with its caller; the next request of the claim is then sent behind it. For an engine that handles the requests of a
    /// claim in the order in which they were sent, or that knows itself which of them are under way.
    Drops(Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>),
    /// Kept by the entry when its caller goes away, and driven to its end before the next request of the claim is sent. For an engine where a
    /// later request may overtake an earlier one. It shares with the place what it needs by an `Arc`.
    Kept(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

impl<'a, T> Request<'a, T> {
    /// Makes a request that is answered.
    pub fn ready(answer: Result<T>) -> Request<'a, T> {
        Request::Ready(answer)
    }

    /// Makes a request that is dropped together with its caller.
    pub fn drops(work: impl Future<Output = Result<T>> + Send + 'a) -> Request<'a, T> {
        Request::Drops(Box::pin(work))
    }

    /// Makes a request that outlives its caller.
    pub fn kept(work: impl Future<Output = Result<T>> + Send + 'static) -> Request<'a, T> {
        Request::Kept(Box::pin(work))
    }
}

/// For a layer, whose own request goes on with the answer.
impl<T: Unpin> Future for Request<'_, T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match self.get_mut() {
            Request::Ready(answer) => {
                let spent = || {
                    Err(Error::new(ErrorKind::Internal, "a request is polled no more once it was answered"))
                };
                Poll::Ready(std::mem::replace(answer, spent()))
            }
            Request::Drops(coming) => coming.as_mut().poll(cx),
            Request::Kept(coming) => coming.as_mut().poll(cx),
        }
    }
}

/// The future is dropped together with its caller. For an engine that answers on the spot unless its database is busy,
/// and for a layer over an entry, which keeps what must be kept.
impl<'a, T: Unpin> From<Reply<'a, Result<T>>> for Request<'a, T> {
    fn from(reply: Reply<'a, Result<T>>) -> Request<'a, T> {
        match reply {
            Reply::Ready(answer) => Request::Ready(answer.expect("nobody has polled it")),
            Reply::Coming(coming) => Request::Drops(coming),
        }
    }
}

/// How a claim comes to its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The claim asks for a grant of its own.
    Enter,
    /// The claim takes up a detached grant, whose id it has. It never makes a new one.
    Attach,
}

/// How a claim leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// The claim is not wanted any more, waiting or holding. No run of it is recorded.
    Withdraw,
    /// Its work is done, or its guard was dropped.
    Release,
    /// Its grant stays for the claim's `ttl` from this request on at the earliest, and belongs to no process. This shortens no lease, because
    /// somebody else may have been told of a longer one. [`Found::Missing`] answers that there is none.
    /// Not asked of an engine without [detached leases](crate::Capabilities::detach).
    Detach,
}

/// How [`Place::convert`] changes a grant. The answer is [`Attempt::Granted`] with the grant's token, or says why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conversion {
    /// Exclusive, once all other holders have left: see [`Entry::upgrade`](crate::Entry::upgrade).
    Exclusive {
        /// The claim is marked while it is blocked, so that it goes before all that wait.
        join: bool,
    },
    /// Shared, without a mark: see [`Entry::downgrade`](crate::Entry::downgrade).
    Shared {
        /// The token that the holder knows.
        token: Token,
    },
    /// As it is, with this token: see [`Entry::raise`](crate::Entry::raise).
    Raise {
        /// The token.
        to: Token,
    },
}

/// The reply to a request to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// What the engine found of the claim.
    pub found: Found,
    /// Whether what it found was a grant. `None`: the engine does not say, so core takes it for one if the claim attached or was ever
    /// confirmed.
    pub held: Option<bool>,
    /// Whether the connection sent the request more than once, so that a later copy may have found nothing.
    pub repeated: bool,
}

impl From<Found> for Left {
    fn from(found: Found) -> Left {
        Left { found, held: None, repeated: false }
    }
}

impl Left {
    /// For a layer: its parts at the engines are claims themselves, so they know what earlier requests have removed.
    pub fn by_parts(removed: Removed) -> Left {
        match removed {
            Removed::Nothing => Found::Nothing.into(),
            Removed::Released | Removed::Withdrawn => removed.into(),
        }
    }
}

/// For an engine that knows what it removed.
impl From<Removed> for Left {
    fn from(removed: Removed) -> Left {
        match removed {
            Removed::Released => Left { held: Some(true), ..Found::Valid.into() },
            Removed::Withdrawn => Left { held: Some(false), ..Found::Valid.into() },
            Removed::Nothing => Found::Missing.into(),
        }
    }
}
