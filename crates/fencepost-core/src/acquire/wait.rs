//! The wait loop: one claim from its first attempt to its grant, or to the end of its waiting time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::MaybeDone;

use crate::acquire::ask::Ask;
use crate::acquire::blockers::Blockers;
use crate::acquire::options::Single;
use crate::acquire::outage::{Outage, unrenewed_error};
use crate::backend::{Attempt, Reply};
use crate::error::{Error, Result};
use crate::guard::owned::Owned;
use crate::operator::holder::ClaimInfo;
use crate::time::Moment;
use crate::token::Token;
use crate::validity::Validity;

impl Single<'_> {
    /// One claim from its first attempt to its end. The first attempt may last until `first`.
    pub(crate) async fn wait_for_grant(
        &self,
        owned: &mut Owned,
        deadline: Moment,
        first: Moment,
        ask: Ask,
    ) -> Result<Waited> {
        let clock = self.client.runtime.clock();
        // The failures were those of its position in the queue, and it holds now.
        if ask != Ask::Grant {
            owned.claim().validity.forget_unrenewed();
        }
        let mut outage = Outage::default();
        let mut blockers = None;
        // Boxed, because few claims have it, and it is large.
        let mut overdue: Option<Beside<'_>> =
            self.evict_overdue.then(|| Box::pin(self.evict_overdue_holders(ask)) as Beside<'_>);
        let (mut until, mut is_first, mut silent) = (first, true, true);
        loop {
            let mut asked = Moment::ZERO;
            let patience = self.patience(&owned.claim().validity).min(self.limit_of(&outage));
            // Dropped at any await below, or left by `?`: `owned` withdraws.
            let answer = match ask.send(owned.entry(), self.join) {
                Reply::Ready(answer) => Some((answer, false)),
                coming => {
                    asked = clock.now();
                    // A grant that has come already counts. A request would have no time for its answer: not polled, it is not sent.
                    let is_late = !is_first && asked >= deadline;
                    if is_late { None } else { Some((clock.within(until.min(patience), coming).await, true)) }
                }
            };
            // The note of a run decides about no lock: a grant for which only that has no answer counts.
            if !matches!(answer, Some((Some(_), _)))
                && let Some(grant) = owned.entry().grant_without_note()
            {
                return Ok(Waited::Granted(grant));
            }
            let Some((answer, heard)) = answer else {
                return Ok(self.out_of_time(owned, ask, blockers, first, outage).await);
            };
            (until, is_first) = (deadline, false);
            let validity = &owned.claim().validity;
            // The engine has been away for longer than a claim waits for it.
            let too_long = |since: &Moment| clock.now() >= *since + self.client.outage;
            let given_up =
                || validity.unrenewed_since().filter(too_long).and_then(|_| unrenewed_error(validity));
            let next_attempt = match answer {
                Some(Ok(Attempt::Granted(grant))) => return Ok(Waited::Granted(grant)),
                Some(Ok(Attempt::Gone)) => return Ok(Waited::Gone),
                Some(Ok(Attempt::Blocked { .. })) if !self.join => return Ok(Waited::Busy),
                Some(Ok(Attempt::Blocked { next_attempt, .. })) => {
                    (outage, silent) = (Outage::default(), false);
                    if heard {
                        validity.clear_unrenewed();
                    } else if let Some(error) = given_up() {
                        return Err(error);
                    }
                    if ask == Ask::Grant {
                        owned.schedule_renewal();
                    }
                    if let Some(tell) = &self.on_behalf.queued {
                        tell();
                    }
                    next_attempt.unwrap_or(Moment::NEVER)
                }
                Some(Err(error)) => {
                    // A queued claim that could not be renewed counts as failing since then.
                    outage.since = outage.since.into_iter().chain(validity.unrenewed_since()).min();
                    let now = clock.now();
                    outage.pause(error, self, if heard { asked } else { now }, now)?
                }
                None => {
                    if let Some(error) = given_up() {
                        return Err(error);
                    }
                    if clock.now() >= self.limit_of(&outage)
                        && let Some(error) = outage.last
                    {
                        return Err(error);
                    }
                    // An engine that has answered `Blocked` before and was silent for less than a second is well and the lock is busy: the waiting time
                    // merely ended during a request.
                    if silent || clock.now().since(asked) >= SILENCE {
                        let why = owned.entry().why_silent();
                        outage
                            .last
                            .get_or_insert_with(|| why.unwrap_or_else(|| Error::no_answer().unknown()));
                    }
                    // Its patience has ended, but a renewal was confirmed since, so there is no failure to report. The old start is forgotten,
                    // because with it each later request would be given up at once.
                    if clock.now() >= patience {
                        owned.claim().validity.forget_unrenewed();
                    }
                    clock.now()
                }
            };
            if deadline != Moment::NEVER && clock.now() >= deadline {
                return Ok(self.out_of_time(owned, ask, blockers, first, outage).await);
            }
            let failing = outage.last.is_some();
            let blockers = blockers.get_or_insert_with(|| self.find_blockers(deadline));
            self.sleep_until_news(owned, next_attempt.min(deadline), failing, blockers, &mut overdue).await;
            self.client.check_open()?;
        }
    }

    /// Until when the engine may go on failing.
    fn limit_of(&self, outage: &Outage) -> Moment {
        outage.since.filter(|_| self.join).map_or(Moment::NEVER, |since| since + self.client.outage)
    }

    /// Until when a claim whose position in the queue cannot be renewed is tried.
    fn patience(&self, validity: &Validity) -> Moment {
        validity.unrenewed_since().map_or(Moment::NEVER, |since| since + self.client.outage)
    }

    /// When a claim whose position in the queue cannot be renewed asks for itself, so that there is time for the answer. Once that is past it
    /// is the end of its patience.
    fn last_call(&self, validity: &Validity) -> Moment {
        let patience = self.patience(validity);
        let last_call = patience.less(self.client.attempt_timeout.min(self.client.outage / 2));
        if self.client.runtime.clock().now() < last_call { last_call } else { patience }
    }

    /// Sleeps until the engine hints at an answer, the time has come, the client closes, or the queued claim has not been renewed for
    /// too long.
    async fn sleep_until_news(
        &self,
        owned: &mut Owned,
        next_attempt: Moment,
        failing: bool,
        blockers: &mut Blockers<'_>,
        overdue: &mut Option<Beside<'_>>,
    ) {
        let clock = self.client.runtime.clock();
        let claim = Arc::clone(owned.claim());
        // Only a claim that is renewed can miss a renewal.
        let mut watch = (claim.scheduled.load(Ordering::Relaxed) != 0).then(|| claim.validity.watch(clock));
        // Made before the check, so that a close between the two is not missed.
        let mut closing = pin!(self.client.closing.notified());
        if self.client.check_open().is_err() {
            return;
        }
        loop {
            let stranded = claim.validity.unrenewed_since();
            // After an error only the pause before the next attempt counts.
            let patience = if failing { Moment::NEVER } else { self.last_call(&claim.validity) };
            let mut sleep = clock.sleep_until(next_attempt.min(patience));
            let woken = poll_fn(|cx| {
                // The result stays in `blockers` until it is taken.
                let _ = Pin::new(&mut *blockers).poll(cx);
                if let Some(overdue) = overdue {
                    // It has no end.
                    let _ = overdue.as_mut().poll(cx);
                }
                // After an error nothing is attempted during the pause.
                if !failing && owned.entry().poll_wait(cx).is_ready() {
                    return Poll::Ready(Woken::Engine);
                }
                if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Close);
                }
                // A watch on a validity that has ended would wake this task without end.
                if let Some(watch) = watch.as_mut().filter(|_| claim.validity.ended().is_none()) {
                    watch.set(cx.waker());
                    if claim.validity.unrenewed_since() != stranded {
                        return Poll::Ready(Woken::Renewer);
                    }
                }
                Pin::new(&mut sleep).poll(cx).map(|()| Woken::Time)
            })
            .await;
            if let Woken::Engine | Woken::Close | Woken::Time = woken {
                return;
            }
        }
    }

    /// The waiting time is over, because the lock is busy or the engine fails.
    async fn out_of_time<'a>(
        &'a self,
        owned: &mut Owned,
        ask: Ask,
        blockers: Option<Blockers<'a>>,
        first: Moment,
        outage: Outage,
    ) -> Waited {
        let failure = outage.last.or_else(|| unrenewed_error(&owned.claim().validity));
        if failure.is_some() {
            return Waited::TimedOut { holders: Vec::new(), failure };
        }
        let mut blockers = blockers.unwrap_or_else(|| self.find_blockers(Moment::ZERO));
        if let MaybeDone::Future(_) = blockers {
            if ask == Ask::Grant {
                // It leaves the queue first: a look that comes later must not find it as the holder. Dropped here, `owned` withdraws.
                owned.withdraw(first).await;
            }
            // At most until `first`, because the call must not last longer than its first attempt might have.
            self.client.runtime.clock().within(first, &mut blockers).await;
        }
        match Pin::new(&mut blockers).take_output() {
            Some(Err(error)) if error.is_unreachable() => {
                Waited::TimedOut { holders: Vec::new(), failure: Some(error) }
            }
            found => {
                Waited::TimedOut { holders: found.and_then(Result::ok).unwrap_or_default(), failure: None }
            }
        }
    }
}

/// An engine that has not answered for so long is taken to have failed.
const SILENCE: Duration = Duration::from_secs(1);

/// Work beside the wait, which goes on only while the claim rests in the queue.
type Beside<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// By what a rest in the queue was ended.
enum Woken {
    Engine,
    /// The renewals of the queued claim have begun to fail, or get through again.
    Renewer,
    /// The client is closed.
    Close,
    Time,
}

/// How a claim's wait ended.
pub(crate) enum Waited {
    Granted(Token),
    Busy,
    Gone,
    TimedOut { holders: Vec<ClaimInfo>, failure: Option<Error> },
}
