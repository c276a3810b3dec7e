//! The one life of a claim at an engine.

pub(crate) mod place;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::backend::claim::Claim;
use crate::backend::withdrawal::{Found, Withdrawal};
use crate::backend::{Attempt, Entry, Removed, Renewal, Reply};
use crate::entry::place::{Leave, Left, Place, Request, Turn};
use crate::error::{Effect, Error, Result};
use crate::token::Token;

/// One claim at an engine, from its first request to its end. An engine writes the [`Place`] below it.
///
/// The entry knows what its place need not: whether the claim was asked for, waits, holds or has left; which request is under way although
/// its caller has gone away; and what a request to leave removed if the reply to an earlier one was lost.
pub struct ClaimEntry<P: Place> {
    place: P,
    life: Life,
}

impl<P: Place + 'static> ClaimEntry<P> {
    /// Makes the entry of a claim that nothing was asked for yet.
    pub fn enter(claim: Arc<Claim>, place: P) -> Box<dyn Entry> {
        Box::new(ClaimEntry { place, life: Life::new(claim, false) })
    }

    /// Makes the entry of a claim that takes up a detached grant: it has the id of that grant.
    pub fn attach(claim: Arc<Claim>, place: P) -> Box<dyn Entry> {
        Box::new(ClaimEntry { place, life: Life::new(claim, true) })
    }
}

/// Where the claim is, as far as the engine's answers tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing of it is at the engine.
    New,
    /// It was asked for, and may be at the engine.
    Asked,
    Queued,
    Holding(Token),
    /// The engine has answered that it is gone.
    Gone,
    Left(Removed),
}

/// What is known of the claim, whatever its engine.
struct Life {
    claim: Arc<Claim>,
    /// It takes up a detached grant.
    attaches: bool,
    step: Step,
    /// A request for the grant has no answer, so it may still arrive.
    asking: bool,
    withdrawal: Withdrawal,
    /// The request that outlives its caller.
    kept: Option<Kept>,
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
    Turn(Turn, Coming<Attempt>),
    Remove(Coming<Left>),
    Detach(Coming<Left>),
}

/// The answer to a kept request. All but the last are noted already.
enum Answer {
    Asked(Result<Attempt>),
    Turned(Turn, Result<Attempt>),
    Removed(Result<Removed>),
    /// Noted by its caller alone: a grant whose detachment nobody learns of is released with its guard.
    Detached(Result<Left>),
}

impl Life {
    fn new(claim: Arc<Claim>, attaches: bool) -> Life {
        // A detached grant is at the engine although nothing was asked for.
        let step = if attaches { Step::Asked } else { Step::New };
        Life { claim, attaches, step, asking: false, withdrawal: Withdrawal::default(), kept: None }
    }

    /// Returns what needs no request.
    fn known(&self) -> Option<Attempt> {
        match self.step {
            Step::Holding(token) if self.claim.is_valid() => Some(Attempt::Granted(token)),
            Step::Holding(_) | Step::Gone | Step::Left(_) => Some(Attempt::Gone),
            Step::New | Step::Asked | Step::Queued => None,
        }
    }

    /// Notes that a request for the grant is sent.
    fn ask(&mut self) -> Before {
        let before = Before { step: self.step, asking: self.asking };
        self.asking = true;
        if self.step == Step::New {
            self.step = Step::Asked;
        }
        before
    }

    fn asked(&mut self, before: Before, answer: Result<Attempt>) -> Result<Attempt> {
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

    fn turned(&mut self, answer: Result<Attempt>) -> Result<Attempt> {
        match answer {
            Ok(Attempt::Granted(token)) => self.step = Step::Holding(token),
            Ok(Attempt::Gone) => self.step = Step::Gone,
            Ok(Attempt::Blocked { .. }) | Err(_) => {}
        }
        answer
    }

    /// Notes that a request to leave is sent.
    fn leave(&mut self) {
        self.withdrawal.start(self.claim.is_valid());
    }

    fn left(&mut self, answer: Result<Left>) -> Result<Removed> {
        let Left { found, held, repeated } = self.withdrawal.answered(answer)?;
        self.withdrawal.repeated(repeated);
        let held = held.unwrap_or_else(|| self.attaches || self.claim.validity.is_confirmed());
        let removed = self.withdrawal.removed(found, held);
        self.step = Step::Left(removed);
        Ok(removed)
    }

    fn detached(&mut self, answer: Result<Left>) -> Result<()> {
        if answer?.found == Found::Missing {
            return Err(self.claim.gone());
        }
        self.step = Step::Left(Removed::Nothing);
        Ok(())
    }

    /// Drives the kept request. `None`: nothing is kept.
    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        let Some(kept) = &mut self.kept else { return Poll::Ready(None) };
        let answer = match kept {
            Kept::Ask(before, coming) => {
                let (before, answer) = (*before, ready!(coming.as_mut().poll(cx)));
                Answer::Asked(self.asked(before, answer))
            }
            Kept::Turn(to, coming) => {
                let (to, answer) = (*to, ready!(coming.as_mut().poll(cx)));
                Answer::Turned(to, self.turned(answer))
            }
            Kept::Remove(coming) => {
                let answer = ready!(coming.as_mut().poll(cx));
                Answer::Removed(self.left(answer))
            }
            Kept::Detach(coming) => Answer::Detached(ready!(coming.as_mut().poll(cx))),
        };
        self.kept = None;
        Poll::Ready(Some(answer))
    }

    /// Waits until nothing is kept.
    async fn settle(&mut self) -> Option<Answer> {
        poll_fn(|cx| self.poll_kept(cx)).await
    }

    /// Keeps a request, and waits for its answer.
    async fn keep(&mut self, kept: Kept) -> Answer {
        self.kept = Some(kept);
        self.settle().await.expect("it was kept")
    }
}

impl<P: Place> ClaimEntry<P> {
    fn ask(&mut self) -> Reply<'_, Result<Attempt>> {
        if let Some(known) = self.life.known() {
            return Reply::ready(Ok(known));
        }
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Asked(answer)) => answer,
                    _ => Box::pin(self.ask()).await,
                }
            });
        }
        let ClaimEntry { place, life } = self;
        match place.ask() {
            Request::Ready(answer) => {
                let before = life.ask();
                Reply::ready(life.asked(before, answer))
            }
            Request::Drops(coming) => Reply::coming(async move {
                let before = life.ask();
                let answer = coming.await;
                life.asked(before, answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                let before = life.ask();
                match life.keep(Kept::Ask(before, coming)).await {
                    Answer::Asked(answer) => answer,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    fn remove(&mut self, how: Leave) -> Reply<'_, Result<Removed>> {
        self.life.claim.set_leaving();
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Removed(removed)) => removed,
                    _ => Box::pin(self.remove(how)).await,
                }
            });
        }
        match self.life.step {
            Step::Left(removed) => return Reply::ready(Ok(removed)),
            // Nothing has to be sent. A request for the grant that was made before and comes only now finds that the claim has left.
            Step::New => {
                self.life.step = Step::Left(Removed::Nothing);
                return Reply::ready(Ok(Removed::Nothing));
            }
            Step::Asked | Step::Queued | Step::Holding(_) | Step::Gone => {}
        }
        let ClaimEntry { place, life } = self;
        match place.leave(how, life.withdrawal.may_have_left()) {
            Request::Ready(answer) => {
                // The clock is not read if its time does not matter.
                if !matches!(answer, Ok(Left { found: Found::Valid, .. })) {
                    life.leave();
                }
                Reply::ready(life.left(answer))
            }
            Request::Drops(coming) => Reply::coming(async move {
                life.leave();
                let answer = coming.await;
                life.left(answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                life.leave();
                match life.keep(Kept::Remove(coming)).await {
                    Answer::Removed(removed) => removed,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    fn turn(&mut self, to: Turn) -> Reply<'_, Result<Attempt>> {
        if self.life.kept.is_some() {
            return Reply::coming(async move {
                match self.life.settle().await {
                    Some(Answer::Turned(turned, answer)) if turned == to => answer,
                    _ => Box::pin(self.turn(to)).await,
                }
            });
        }
        if !matches!(self.life.step, Step::Holding(_)) {
            return Reply::ready(Ok(Attempt::Gone));
        }
        let ClaimEntry { place, life } = self;
        match place.turn(to) {
            Request::Ready(answer) => Reply::ready(life.turned(answer)),
            Request::Drops(coming) => Reply::coming(async move {
                let answer = coming.await;
                life.turned(answer)
            }),
            Request::Kept(coming) => Reply::coming(async move {
                match life.keep(Kept::Turn(to, coming)).await {
                    Answer::Turned(_, answer) => answer,
                    _ => unreachable!("one request is kept at a time"),
                }
            }),
        }
    }

    /// Makes a change that no other holder can block.
    fn turn_now(&mut self, to: Turn) -> Reply<'_, Result<()>> {
        let claim = Arc::clone(&self.life.claim);
        let held = move |answer: Result<Attempt>| match answer? {
            Attempt::Granted(_) => Ok(()),
            Attempt::Blocked { .. } | Attempt::Gone => Err(claim.gone()),
        };
        match self.turn(to) {
            Reply::Ready(answer) => Reply::Ready(answer.map(held)),
            coming => Reply::coming(async move { held(coming.await) }),
        }
    }

    async fn cut_loose(&mut self) -> Result<()> {
        // A detachment whose caller went away may have taken effect. The grant is then detached again.
        self.life.settle().await;
        if !matches!(self.life.step, Step::Holding(_)) {
            return Err(self.life.claim.gone());
        }
        let ClaimEntry { place, life } = self;
        match place.leave(Leave::Detach, false) {
            Request::Ready(answer) => life.detached(answer),
            Request::Drops(coming) => {
                let answer = coming.await;
                life.detached(answer)
            }
            Request::Kept(coming) => match life.keep(Kept::Detach(coming)).await {
                Answer::Detached(answer) => life.detached(answer),
                _ => unreachable!("one request is kept at a time"),
            },
        }
    }
}

impl<P: Place> Entry for ClaimEntry<P> {
    fn attempt(&mut self) -> Reply<'_, Result<Attempt>> {
        self.ask()
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The answer to a request whose caller has gone away is the news.
        if self.life.kept.is_some() {
            return self.life.poll_kept(cx).map(drop);
        }
        match self.life.step {
            Step::New => Poll::Pending,
            Step::Gone | Step::Left(_) => Poll::Ready(()),
            Step::Asked | Step::Queued | Step::Holding(_) => self.place.poll_news(cx),
        }
    }

    fn why_silent(&self) -> Option<Error> {
        self.place.why_silent()
    }

    fn renewal(&self) -> Option<Renewal> {
        let holds = match self.life.step {
            Step::Holding(_) => true,
            Step::Queued => false,
            // Its renewal finds out why the grant is gone.
            Step::Gone if self.life.claim.validity.is_confirmed() => true,
            Step::New | Step::Asked | Step::Gone | Step::Left(_) => return None,
        };
        let session = self.place.session(holds)?;
        Some(Renewal { claim: Arc::clone(&self.life.claim), session })
    }

    fn withdraw(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(Leave::Withdraw)
    }

    fn release(&mut self) -> Reply<'_, Result<Removed>> {
        self.remove(Leave::Release)
    }

    fn detach(&mut self) -> Reply<'_, Result<()>> {
        Reply::coming(self.cut_loose())
    }

    fn upgrade(&mut self, join: bool) -> Reply<'_, Result<Attempt>> {
        self.turn(Turn::Exclusive { join })
    }

    fn downgrade(&mut self, token: Token) -> Reply<'_, Result<()>> {
        self.turn_now(Turn::Shared { token })
    }

    fn raise(&mut self, to: Token) -> Reply<'_, Result<()>> {
        self.turn_now(Turn::Raise { to })
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        if let Step::Holding(_) = self.life.step { self.place.native() } else { None }
    }
}

impl<P: Place> Drop for ClaimEntry<P> {
    fn drop(&mut self) {
        self.life.kept = None;
        if !matches!(self.life.step, Step::New | Step::Left(_)) {
            self.place.abandon(self.life.asking);
        }
    }
}
