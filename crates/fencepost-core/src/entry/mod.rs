//! One claim at an engine, from its first request to its end.
//!
//! This module keeps two rules, so that no engine has to:
//!
//! - **An error without an [effect](Error::effect) means that the claim is where it was before.** So a request for the grant that was refused
//!   leaves a claim that is not at the engine, unless an earlier one had no reply, and a request to leave that was refused is not repeated by the next one: see
//!   [`Life::note_ask_answer`] and [`LeaveRequests::note_answer`].
//! - **A claim counts as one that was valid when it left, if it was valid by the client's clock when the first request to leave was sent.** This
//!   decides whether a request that found nothing reports "released" because an earlier one took effect, or "lost": see
//!   [`LeaveRequests::removed`]. A claim that nothing was confirmed for counts as valid.

pub(crate) mod abandoned;
pub(crate) mod cleanup;
mod leave_requests;
pub(crate) mod local_turn;
mod notes;
pub(crate) mod place;
pub(crate) mod runs;
#[cfg(test)]
mod tests;
mod with_run;

use std::any::Any;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::backend::attempt::{Attempt, Removed};
use crate::backend::claim::Claim;
use crate::backend::reply::Reply;
use crate::backend::session::{Renewal, Session};
pub use crate::entry::leave_requests::Found;
use crate::entry::leave_requests::LeaveRequests;
use crate::entry::local_turn::LocalTurn;
use crate::entry::place::{Conversion, How, Leave, Left, Place, Request};
use crate::entry::runs::EntryRun;
use crate::error::{Effect, Error, Result};
use crate::token::Token;

/// One claim at an engine, from its first request to its end. An engine writes the [`Place`] below it.
///
/// The entry knows what its place need not: whether the claim was asked for, waits, holds or has left; which request is under way although
/// its caller has gone away; and what a request to leave removed if the reply to an earlier one was lost. It records the claim's
/// [run](crate::Run) where the client asks for that.
///
/// An entry is a place itself, for a layer that passes on what it is asked, or changes a part of that.
///
/// # Drop
/// The drop leaves nothing of the claim at the engine. It sends the request to leave, unless another request must be answered or the end of
/// a run must be recorded first. In the background the request is repeated until the engine has confirmed it, refuses it for good, or the lease must have ended.
/// [`on_drop`](Entry::on_drop) says how the claim leaves. In a process that was forked off the client's, the drop does nothing.
pub struct Entry {
    place: Box<dyn Place>,
    life: Life,
    /// Records the claim's run. `None`: no run of it is recorded.
    run: Option<Box<EntryRun>>,
}

impl Entry {
    /// Makes the entry of a claim that nothing was asked for yet, or that takes up a detached grant. No I/O.
    pub fn new(claim: Arc<Claim>, how: How, place: impl Place + 'static) -> Entry {
        Entry { place: Box::new(place), life: Life::new(claim, how), run: None }
    }

    /// Makes the claim wait for its turn in the process first.
    pub(crate) fn with_turn(mut self, turn: LocalTurn) -> Entry {
        self.life.turn = Some(Box::new(turn));
        self
    }

    /// Sets how the claim leaves when the entry is dropped. `None`: it stays, until its lease ends. Without this call a claim is
    /// [withdrawn](Leave::Withdraw), and a detached grant stays. A drop cannot detach a
    /// grant, so [`Leave::Detach`] withdraws it as well.
    #[must_use]
    pub fn on_drop(mut self, how: Option<Leave>) -> Entry {
        self.set_on_drop(how);
        self
    }

    pub(crate) fn set_on_drop(&mut self, how: Option<Leave>) {
        self.life.on_drop = how;
    }

    /// Returns the claim.
    pub fn claim(&self) -> &Arc<Claim> {
        &self.life.claim
    }

    /// Asks the engine for the grant, or collects a grant that was pushed. A grant confirms the claim's validity. If the claim is queued, the
    /// engine may schedule the renewal of its position ([`waiting`](crate::Validity::waiting)). If the claim does not join the queue, a
    /// blocked attempt leaves nothing behind.
    ///
    /// A reply that is ready means that the engine was not asked, unless the engine always answers on the spot. Any other reply sends its
    /// request with the first poll, and the wait loop takes its answer as a sign that the engine can be reached.
    ///
    /// # Errors
    /// Without an [effect](Error::effect) the claim is where it was before. Otherwise it may be at the engine.
    ///
    /// # Cancel safety
    /// Safe. The request may still take effect: call this again, or withdraw.
    pub fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        if self.run.is_some() { self.attempt_with_run() } else { self.ask_for_grant() }
    }

    /// Is ready when another attempt is worthwhile. This is a hint: it may be ready without a reason, but not every time. A wake-up between the
    /// answer of an attempt and this call is not lost.
    pub fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = self.life.turn.as_ref().and_then(|turn| turn.poll(cx)) {
            return turn;
        }
        // For a request whose caller has gone away, its answer is the news.
        if self.life.kept.is_some() {
            return self.life.poll_kept(cx).map(drop);
        }
        match self.life.step {
            Step::New => Poll::Pending,
            Step::Gone | Step::Left(_) => Poll::Ready(()),
            Step::Asked | Step::Queued | Step::Holding(_) => self.place.poll_news(cx),
        }
    }

    /// Returns why the last attempt had no answer within its time, if that is known.
    pub fn why_silent(&self) -> Option<Error> {
        self.place.why_silent()
    }

    /// Returns the session that keeps the claim alive, queued or holding. `None`: nothing has to.
    pub fn renewal(&self) -> Option<Renewal> {
        if let Some(session) = self.life.turn.as_ref().and_then(|turn| turn.session()) {
            return Some(Renewal { claim: Arc::clone(&self.life.claim), session });
        }
        let holds = match self.life.step {
            Step::Holding(_) => true,
            Step::Queued => false,
            // The renewal of a grant that is gone finds out the reason.
            Step::Gone if self.life.claim.validity.is_confirmed() => true,
            Step::New | Step::Asked | Step::Gone | Step::Left(_) => return None,
        };
        let session = self.place.session(holds)?;
        Some(Renewal { claim: Arc::clone(&self.life.claim), session })
    }

    /// Removes the claim from the engine, granted or not. After `Err` call this again: unless the error has an
    /// [effect](Error::effect), nothing was removed.
    ///
    /// # Cancel safety
    /// The first poll sends, unless an earlier request must be answered first or the end of a run is to be noted first. Dropped later, it
    /// takes effect or not: call this again to know.
    pub fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(Leave::Withdraw)
    }

    /// Removes the claim after its work is done, or its guard was dropped.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    pub fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(Leave::Release)
    }

    /// Withdraws or releases the claim. A grant is never detached by this.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    pub fn remove(&mut self, how: Leave) -> Reply<'_, Result<Removed>> {
        let how = if how == Leave::Release { Leave::Release } else { Leave::Withdraw };
        if self.run.is_some() { self.remove_with_run(how) } else { self.leave_engine(how) }
    }

    /// Detaches the grant from this process: it ends `claim.ttl()` after this request, unless a program that knows the claim's id
    /// extends it. After `Ok` the entry owns nothing.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the claim holds the resource no more.
    ///
    /// # Cancel safety
    /// Dropped midway, the grant is detached or not, and this entry still counts as its holder. When the entry is
    /// dropped, the claim leaves as [`on_drop`](Entry::on_drop) says.
    pub fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(async move {
            self.detach_grant().await?;
            // The run continues without this entry.
            self.run = None;
            Ok(())
        })
    }

    /// Makes `to` the token of this claim's grant, so that each later grant of the resource has a greater one. Quorums use it. No
    /// two grants get the same token. A claim that [regains](crate::Vote::regains) a vote may get a smaller token than it has, if it
    /// holds the resource alone; the resource's greatest token stays.
    ///
    /// # Errors
    /// [`is_mismatch`](Error::is_mismatch) if another claim got that token or a greater one. That or [`is_lost`](Error::is_lost) if this
    /// claim holds the resource no more.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    pub fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.convert_now(Conversion::Raise { to })
    }

    /// Asks for the claim's shared grant to become exclusive, or collects that. The claim is marked at the engine until all other holders
    /// have left. Meanwhile the engine admits no claim, so the upgrade comes before all claims that wait. Then the grant is exclusive, with a
    /// new token, greater than all before. The claim's lease, validity and renewal continue. [`poll_wait`](Entry::poll_wait)
    /// hints that another call is worthwhile. The mark ends with the claim's lease, release or eviction. With `join` false a
    /// blocked call leaves no mark.
    ///
    /// An engine can treat a marked claim as an exclusive holder beside shared ones: [`admit`](crate::admission::admit) then admits
    /// nobody, and another upgrade finds it.
    ///
    /// # Errors
    /// [`is_upgrade_conflict`](Error::is_upgrade_conflict) if another holder is marked. The claim stays shared.
    ///
    /// # Cancel safety
    /// Safe. The request may still take effect: call this again, or [`downgrade`](Entry::downgrade).
    pub fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        if self.run.is_none() {
            return self.convert_grant(Conversion::Exclusive { join });
        }
        Reply::coming(async move {
            let attempt = self.convert_grant(Conversion::Exclusive { join }).await?;
            if let Attempt::Granted(token) = attempt {
                self.renumber_run(token).await;
            }
            Ok(attempt)
        })
    }

    /// Makes the claim's grant shared, and removes the mark of an [`upgrade`](Entry::upgrade). The grant never ends meanwhile. It gets the
    /// `token` that its holder knows: an upgrade whose reply was lost may have drawn another one. Waiting claims that fit beside it are
    /// admitted. A shared grant without a mark stays as it is. After `Err` the outcome is unknown: call this again.
    ///
    /// # Errors
    /// [`is_lost`](Error::is_lost) if the claim holds the resource no more.
    ///
    /// # Cancel safety
    /// That of [`withdraw`](Entry::withdraw).
    pub fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        if self.run.is_none() {
            return self.convert_now(Conversion::Shared { token });
        }
        Reply::coming(async move {
            self.convert_now(Conversion::Shared { token }).await?;
            self.renumber_run(token).await;
            Ok(())
        })
    }

    /// Returns whether a request to withdraw or release the claim may have taken effect, or may still arrive.
    pub(crate) fn may_have_left(&self) -> bool {
        self.life.leave_requests.may_have_left()
    }

    /// Returns what was removed, once the engine has answered that. A note on the claim's run may still be missing.
    pub(crate) fn removed(&self) -> Option<Removed> {
        match self.life.step {
            Step::Left(removed) => Some(removed),
            _ => None,
        }
    }

    /// Returns the engine's own extension: a type of its crate, to be downcast to.
    pub fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        if let Step::Holding(_) = self.life.step { self.place.native() } else { None }
    }
}

/// Where the claim is, as far as the engine's answers tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing of the claim is at the engine: it was not asked for, or was refused without waiting.
    New,
    /// The claim may be at the engine, because a request was sent or an earlier client left its grant there.
    Asked,
    Queued,
    Holding(Token),
    /// The engine has answered that the claim is gone. An earlier request may still arrive, so the claim still has to leave.
    Gone,
    Left(Removed),
}

/// What is known of the claim, whatever its engine.
struct Life {
    claim: Arc<Claim>,
    /// Whether the claim takes up a detached grant.
    attaches: bool,
    step: Step,
    /// Whether a request for the grant has had no answer, so that the request may still arrive.
    asking: bool,
    leave_requests: LeaveRequests,
    /// The request that outlives its caller, if there is one. Its answer comes before the next request is sent.
    kept: Option<Kept>,
    /// The claim's turn in the queue of its process, for an engine that has such a queue. `None`: it does not wait there.
    turn: Option<Box<LocalTurn>>,
    /// How the claim leaves when the entry is dropped. `None`: it stays.
    on_drop: Option<Leave>,
}

type Coming<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// What was known before a request for the grant was sent.
#[derive(Clone, Copy)]
struct Before {
    step: Step,
    asking: bool,
}

enum Kept {
    Ask(Before, Coming<Attempt>),
    Convert(Conversion, Coming<Attempt>),
    Remove(Coming<Left>),
    Detach(Coming<Left>),
}

/// The answer to a kept request. All but the last are noted already, because the caller may have gone away.
enum Answer {
    Asked(Result<Attempt>),
    Converted(Conversion, Result<Attempt>),
    Removed(Result<Removed>),
    /// Noted by its caller alone, because a grant whose detachment nobody learns of is to be released with its guard.
    Detached(Result<Left>),
}

impl Life {
    fn new(claim: Arc<Claim>, how: How) -> Life {
        let (attaches, step, on_drop) = match how {
            How::Enter => (false, Step::New, Some(Leave::Withdraw)),
            // A detached grant is at the engine before anything was asked for. The entry does not own it before it was taken up.
            How::Attach => {
                claim.give_lease();
                (true, Step::Asked, None)
            }
        };
        let leave_requests = LeaveRequests::default();
        Life { claim, attaches, step, asking: false, leave_requests, kept: None, turn: None, on_drop }
    }

    /// Marks the claim as left without asking, so that no later call sends anything.
    fn abandon(&mut self) {
        self.step = Step::Left(Removed::Nothing);
    }

    /// Queues the claim in the process if it has to wait there. Returns whether it does.
    fn waits_here(&mut self) -> bool {
        self.turn.as_mut().is_some_and(|turn| !turn.pass())
    }

    /// Returns whether nothing of the claim is at the engine.
    fn is_absent(&self) -> bool {
        matches!(self.step, Step::New | Step::Left(_))
    }

    /// Returns the token of a grant that is valid.
    fn held(&self) -> Option<Token> {
        match self.step {
            Step::Holding(token) if self.claim.is_valid() => Some(token),
            _ => None,
        }
    }

    /// Returns the answer to an attempt, if it needs no request. A grant that is not valid any more stays `Holding`, so that the claim is still
    /// asked to leave.
    fn local_answer(&self) -> Option<Attempt> {
        if let Some(token) = self.held() {
            return Some(Attempt::Granted(token));
        }
        match self.step {
            Step::Holding(_) | Step::Gone | Step::Left(_) => Some(Attempt::Gone),
            Step::New | Step::Asked | Step::Queued => None,
        }
    }

    /// Notes that a request for the grant is sent. Returns what was known before, which counts again if the request has no effect.
    fn note_ask_sent(&mut self) -> Before {
        let before = Before { step: self.step, asking: self.asking };
        self.asking = true;
        if self.step == Step::New {
            self.step = Step::Asked;
        }
        before
    }

    fn note_ask_answer(&mut self, before: Before, answer: Result<Attempt>) -> Result<Attempt> {
        if let Some(turn) = &mut self.turn {
            turn.hear(&answer);
        }
        match &answer {
            Ok(attempt) => {
                self.asking = false;
                self.step = match attempt {
                    Attempt::Granted(token) => Step::Holding(*token),
                    Attempt::Blocked { .. } if self.claim.waits => Step::Queued,
                    Attempt::Blocked { .. } => Step::New,
                    Attempt::Gone => Step::Gone,
                };
            }
            Err(error) if error.effect() == Effect::None => {
                (self.step, self.asking) = (before.step, before.asking)
            }
            Err(_) => {}
        }
        answer
    }

    fn note_conversion_answer(&mut self, answer: Result<Attempt>) -> Result<Attempt> {
        match answer {
            Ok(Attempt::Granted(token)) => self.step = Step::Holding(token),
            Ok(Attempt::Gone) => self.step = Step::Gone,
            Ok(Attempt::Blocked { .. }) | Err(_) => {}
        }
        answer
    }

    /// Notes that a request to leave is sent.
    fn note_leave_sent(&mut self) {
        self.leave_requests.note_sent(self.claim.is_valid());
    }

    fn note_leave_answer(&mut self, answer: Result<Left>) -> Result<Removed> {
        let Left { found, held, repeated } = self.leave_requests.note_answer(answer)?;
        self.leave_requests.note_repeated(repeated);
        let held = held.unwrap_or_else(|| self.attaches || self.claim.validity.is_confirmed());
        let removed = self.leave_requests.removed(found, held);
        self.step = Step::Left(removed);
        Ok(removed)
    }

    fn note_detach_answer(&mut self, answer: Result<Left>) -> Result<()> {
        if matches!(answer?.found, Found::Missing | Found::Nothing) {
            return Err(self.claim.gone());
        }
        self.step = Step::Left(Removed::Nothing);
        Ok(())
    }

    /// Drives the kept request to its answer. `None`: no request is kept.
    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        let Some(kept) = &mut self.kept else { return Poll::Ready(None) };
        let answer = match kept {
            Kept::Ask(before, coming) => {
                let (before, answer) = (*before, ready!(coming.as_mut().poll(cx)));
                Answer::Asked(self.note_ask_answer(before, answer))
            }
            Kept::Convert(to, coming) => {
                let (to, answer) = (*to, ready!(coming.as_mut().poll(cx)));
                Answer::Converted(to, self.note_conversion_answer(answer))
            }
            Kept::Remove(coming) => {
                let answer = ready!(coming.as_mut().poll(cx));
                Answer::Removed(self.note_leave_answer(answer))
            }
            Kept::Detach(coming) => Answer::Detached(ready!(coming.as_mut().poll(cx))),
        };
        self.kept = None;
        Poll::Ready(Some(answer))
    }

    /// Waits until no request is kept.
    async fn settle(&mut self) -> Option<Answer> {
        poll_fn(|cx| self.poll_kept(cx)).await
    }

    /// Keeps a request, and waits for its answer.
    async fn keep(&mut self, kept: Kept) -> Answer {
        self.kept = Some(kept);
        self.settle().await.expect("it was kept")
    }
}

/// What is asked of the place.
impl Entry {
    fn ask_for_grant(&mut self) -> Reply<'_, Result<Attempt>> {
        if let Some(answer) = self.life.local_answer() {
            return Reply::ready(Ok(answer));
        }
        if self.life.waits_here() {
            self.life.turn.iter().for_each(|turn| turn.blocked());
            return Reply::ready(Ok(Attempt::Blocked { next_attempt: None }));
        }
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Asked(answer)) => answer,
                    _ => Box::pin(self.ask_for_grant()).await,
                }
            });
        }
        let Entry { place, life, .. } = self;
        match place.ask() {
            Request::Ready(answer) => {
                let before = life.note_ask_sent();
                Reply::ready(life.note_ask_answer(before, answer))
            }
            Request::Drops(coming) => Reply::coming(async move {
                let before = life.note_ask_sent();
                let answer = coming.await;
                life.note_ask_answer(before, answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                let before = life.note_ask_sent();
                match life.keep(Kept::Ask(before, coming)).await {
                    Answer::Asked(answer) => answer,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    fn leave_engine(&mut self, how: Leave) -> Reply<'_, Result<Removed>> {
        self.life.claim.set_leaving();
        if let Some(turn) = &mut self.life.turn {
            if turn.waits() {
                turn.leave();
                self.life.step = Step::Left(Removed::Withdrawn);
            }
            // The claims behind it in the process need not wait for the answer.
            turn.answered();
        }
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Removed(removed)) => removed,
                    _ => Box::pin(self.leave_engine(how)).await,
                }
            });
        }
        match self.life.step {
            Step::Left(removed) => return Reply::ready(Ok(removed)),
            // Nothing has to be sent. A later attempt finds that the claim has left.
            Step::New => {
                self.life.step = Step::Left(Removed::Nothing);
                return Reply::ready(Ok(Removed::Nothing));
            }
            Step::Asked | Step::Queued | Step::Holding(_) | Step::Gone => {}
        }
        let Entry { place, life, .. } = self;
        match place.leave(how, life.leave_requests.may_have_left()) {
            Request::Ready(answer) => {
                // After `Valid` the claim counts as removed whatever the clock says, so the clock is not read. For other answers on the spot the
                // clock is read now, because the request took no time.
                if !matches!(answer, Ok(Left { found: Found::Valid, .. })) {
                    life.note_leave_sent();
                }
                Reply::ready(life.note_leave_answer(answer))
            }
            Request::Drops(coming) => Reply::coming(async move {
                life.note_leave_sent();
                let answer = coming.await;
                life.note_leave_answer(answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                life.note_leave_sent();
                match life.keep(Kept::Remove(coming)).await {
                    Answer::Removed(removed) => removed,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    fn convert_grant(&mut self, to: Conversion) -> Reply<'_, Result<Attempt>> {
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Converted(converted, answer)) if converted == to => answer,
                    _ => Box::pin(self.convert_grant(to)).await,
                }
            });
        }
        if !matches!(self.life.step, Step::Holding(_)) {
            return Reply::ready(Ok(Attempt::Gone));
        }
        let Entry { place, life, .. } = self;
        match place.convert(to) {
            Request::Ready(answer) => Reply::ready(life.note_conversion_answer(answer)),
            Request::Drops(coming) => Reply::coming(async move {
                let answer = coming.await;
                life.note_conversion_answer(answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                match life.keep(Kept::Convert(to, coming)).await {
                    Answer::Converted(_, answer) => answer,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    /// Makes a conversion that no other holder can block.
    fn convert_now(&mut self, to: Conversion) -> Reply<'_, Result<()>> {
        let claim = Arc::clone(&self.life.claim);
        let held = move |answer: Result<Attempt>| match answer? {
            Attempt::Granted(_) => Ok(()),
            Attempt::Blocked { .. } | Attempt::Gone => Err(claim.gone()),
        };
        match self.convert_grant(to) {
            Reply::Ready(answer) => Reply::Ready(answer.map(held)),
            coming => Reply::coming(async move { held(coming.await) }),
        }
    }

    async fn detach_grant(&mut self) -> Result<()> {
        // An earlier request whose caller went away may have detached the grant already. Then it is detached once more.
        self.life.settle().await;
        if !matches!(self.life.step, Step::Holding(_)) {
            return Err(self.life.claim.gone());
        }
        let Entry { place, life, .. } = self;
        match place.leave(Leave::Detach, false) {
            Request::Ready(answer) => life.note_detach_answer(answer),
            Request::Drops(coming) => {
                let answer = coming.await;
                life.note_detach_answer(answer)
            }
            Request::Kept(coming) => match life.keep(Kept::Detach(coming)).await {
                Answer::Detached(answer) => life.note_detach_answer(answer),
                _ => unreachable!("one request is kept at a time"),
            },
        }
    }
}

/// For a layer, which asks the entry below it. That entry knows the earlier requests to leave, so it needs no `may_have_left`.
impl Place for Entry {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.attempt().into()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_wait(cx)
    }

    fn leave(&mut self, how: Leave, _may_have_left: bool) -> Request<'_, Left> {
        match how {
            Leave::Detach => Request::drops(async move { self.detach().await.map(|()| Found::There.into()) }),
            Leave::Withdraw | Leave::Release => match self.remove(how) {
                Reply::Ready(answer) => {
                    Reply::Ready(answer.map(|removed| removed.map(Left::by_parts))).into()
                }
                coming => Request::drops(async move { coming.await.map(Left::by_parts) }),
            },
        }
    }

    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        self.renewal().map(|renewal| renewal.session)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        match to {
            Conversion::Exclusive { join } => self.upgrade(join).into(),
            Conversion::Shared { token } => held(self.downgrade(token), token),
            Conversion::Raise { to } => held(self.raise(to), to),
        }
    }

    fn abandon(&mut self, _asking: bool) {
        self.let_go();
    }

    fn why_silent(&self) -> Option<Error> {
        Entry::why_silent(self)
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        Entry::native(self)
    }
}

/// Makes the answer of a place to a conversion that no other holder can block.
fn held(done: Reply<'_, Result<()>>, token: Token) -> Request<'_, Attempt> {
    match done {
        Reply::Ready(answer) => {
            Reply::Ready(answer.map(|done| done.map(|()| Attempt::Granted(token)))).into()
        }
        coming => Request::drops(async move { coming.await.map(|()| Attempt::Granted(token)) }),
    }
}
