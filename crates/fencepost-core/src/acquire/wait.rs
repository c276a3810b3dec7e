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
    /// Repeats attempts and sleeps between them, until the claim is granted or the wait ends. The first attempt may last until `first`, also if
    /// that is later than `deadline`.
    pub(crate) async fn wait_for_grant(
        &self,
        owned: &mut Owned,
        deadline: Moment,
        first: Moment,
        ask: Ask,
    ) -> Result<Waited> {
        let clock = self.client.runtime.clock();
        let mut outage = Outage::default();
        let mut blockers = None;
        // Boxed, because few claims have it, and it is large.
        let mut overdue: Option<Beside<'_>> =
            self.evict_overdue.then(|| Box::pin(self.evict_overdue_holders(ask)) as Beside<'_>);
        let (mut until, mut is_first, mut has_answered) = (first, true, false);
        loop {
            let mut asked = Moment::ZERO;
            let patience = self.patience(&owned.claim().validity).min(self.limit_of(&outage));
            // If this future is dropped at an await below, or ends by `?`, the caller's `owned` leaves nothing behind. The second part of an
            // answer tells whether the engine was asked for it.
            let answer = match ask.send(owned.entry(), self.join) {
                Reply::Ready(answer) => Some((answer, false)),
                coming => {
                    asked = clock.now();
                    // After the deadline a grant that is here already still counts. But no request is sent, because its answer would be too
                    // late: a future that is never polled sends nothing.
                    let is_late = !is_first && asked >= deadline;
                    if is_late { None } else { Some((clock.within(until.min(patience), coming).await, true)) }
                }
            };
            // If only the record of the run has no answer, the grant counts, because that record does not decide about the lock.
            if !matches!(answer, Some((Some(_), _)))
                && let Some(grant) = ask.granted_without_note(owned.entry())
            {
                return Ok(Waited::Granted(grant));
            }
            let Some((answer, was_asked)) = answer else {
                return Ok(self.out_of_time(owned, ask, blockers, first, outage).await);
            };
            (until, is_first) = (deadline, false);
            let validity = &owned.claim().validity;
            let too_long = |since: &Moment| clock.now() >= *since + self.client.outage;
            // The error of a queued claim whose renewals have failed for longer than `outage`.
            let given_up =
                || validity.unrenewed_since().filter(too_long).and_then(|_| unrenewed_error(validity));
            let next_attempt = match answer {
                Some(Ok(Attempt::Granted(grant))) => return Ok(Waited::Granted(grant)),
                Some(Ok(Attempt::Gone)) => {
                    return match outage.last {
                        // The lease has ended while its run could not be recorded. The next one would end so, too.
                        Some(error) if owned.entry().lacks_note() => Err(error),
                        _ => Ok(Waited::Gone),
                    };
                }
                Some(Ok(Attempt::Blocked { .. })) if !self.join => return Ok(Waited::Busy),
                Some(Ok(Attempt::Blocked { next_attempt, .. })) => {
                    (outage, has_answered) = (Outage::default(), true);
                    // An answer about an upgrade says nothing about the renewals of the grant.
                    if was_asked && ask == Ask::Grant {
                        validity.forget_trouble();
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
                    outage.pause(error.undone(), self, if was_asked { asked } else { now }, now)?
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
                    // An engine that has answered `Blocked` before and has been silent for less than a second does not count as failed: the lock
                    // is busy, and the waiting time ended during a request.
                    if !has_answered || clock.now().since(asked) >= SILENCE {
                        let why = owned.entry().why_silent();
                        outage.note_silence(why.unwrap_or_else(|| Error::no_answer().unknown()).undone());
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

    /// Returns when the call gives up if requests go on failing. A call that does not wait has no such time: a count of repeats limits it.
    fn limit_of(&self, outage: &Outage) -> Moment {
        outage.since.filter(|_| self.join).map_or(Moment::NEVER, |since| since + self.client.outage)
    }

    /// Returns until when a claim is asked for whose position in the queue cannot be renewed.
    fn patience(&self, validity: &Validity) -> Moment {
        validity.unrenewed_since().map_or(Moment::NEVER, |since| since + self.client.outage)
    }

    /// Returns when a claim whose position in the queue cannot be renewed is asked for once more: early enough for an answer within its
    /// patience. After that time, returns the end of the patience.
    fn last_call(&self, validity: &Validity) -> Moment {
        let patience = self.patience(validity);
        let last_call = patience.less(self.client.attempt_timeout.min(self.client.outage / 2));
        if self.client.runtime.clock().now() < last_call { last_call } else { patience }
    }

    /// Sleeps until the engine hints that another attempt is worthwhile, the time of the next attempt has come, the client closes, or the
    /// queued claim has not been renewed for too long.
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
        // Only a claim that the renewer has can miss a renewal.
        let mut watch = (claim.scheduled.load(Ordering::Relaxed) != 0).then(|| claim.validity.watch(clock));
        // Made before the check, so that a close between the two is not missed.
        let mut closing = pin!(self.client.closing.notified());
        if self.client.check_open().is_err() {
            return;
        }
        loop {
            let unrenewed_since = claim.validity.unrenewed_since();
            // After an error nothing is attempted before the end of the pause.
            let patience = if failing { Moment::NEVER } else { self.last_call(&claim.validity) };
            let mut sleep = clock.sleep_until(next_attempt.min(patience));
            let woken = poll_fn(|cx| {
                // The result stays in `blockers` until it is taken.
                let _ = Pin::new(&mut *blockers).poll(cx);
                if let Some(overdue) = overdue {
                    // This work never ends.
                    let _ = overdue.as_mut().poll(cx);
                }
                if !failing && owned.entry().poll_wait(cx).is_ready() {
                    return Poll::Ready(Woken::Engine);
                }
                if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Close);
                }
                // A watch on a validity that has ended would wake this task without end.
                if let Some(watch) = watch.as_mut().filter(|_| claim.validity.ended().is_none()) {
                    watch.set(cx.waker());
                    if claim.validity.unrenewed_since() != unrenewed_since {
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

    /// Makes the outcome of a wait whose time has ended, because the lock is busy or because the engine fails.
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
                // The claim leaves the queue first, so that the look cannot find it as the holder. If this future is dropped here, `owned`
                // withdraws it.
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

/// An engine that has not answered for this long counts as failed.
const SILENCE: Duration = Duration::from_secs(1);

/// Work beside the wait. It is polled only while the claim sleeps in the queue.
type Beside<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What has ended a sleep in the queue.
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
    /// Another claim holds the lock, and this one does not wait.
    Busy,
    /// The claim is not at the engine any more.
    Gone,
    /// The waiting time ended. `failure`: the engine failed; otherwise the lock is busy.
    TimedOut {
        holders: Vec<ClaimInfo>,
        failure: Option<Error>,
    },
}
