//! A connection that is made again whenever it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::sync::Mutex;
use crate::time::{Backoff, Clock, Moment};

/// The state of a connection that is kept up.
#[derive(Debug)]
pub enum Connectivity<C, E> {
    /// There is none; the failure of the last attempt, if one has failed since the last connection.
    Down(Option<E>),
    /// There is one.
    Up(C),
    /// There is none, and never will be.
    Closed,
}

/// Keeps a connection up until it is closed. Clones share the connection.
#[derive(Debug)]
pub struct Supervisor<C, E>(Arc<State<C, E>>);

#[derive(Debug)]
struct State<C, E> {
    connectivity: watch::Sender<Connectivity<C, E>>,
    /// Somebody wants an attempt that begins later than the last one. Written while `connectivity` is locked.
    hurried: AtomicBool,
    /// How many callers wait for a connection.
    needed: AtomicUsize,
    /// The last attempt worked.
    worked: AtomicBool,
    /// Why the last attempt failed, until one works. Unlike the failure in `connectivity` it outlives `try_now`.
    last_failure: Mutex<Option<E>>,
}

impl<C, E> Clone for Supervisor<C, E> {
    fn clone(&self) -> Supervisor<C, E> {
        Supervisor(Arc::clone(&self.0))
    }
}

impl<C, E> Default for Supervisor<C, E> {
    fn default() -> Supervisor<C, E> {
        let connectivity = watch::Sender::new(Connectivity::Down(None));
        Supervisor(Arc::new(State {
            connectivity,
            hurried: AtomicBool::new(false),
            needed: AtomicUsize::new(0),
            worked: AtomicBool::new(false),
            last_failure: Mutex::new(None),
        }))
    }
}

impl<C: Clone, E: Clone> Supervisor<C, E> {
    /// Returns why the last attempt failed, if none has worked since. After [`try_now`](Supervisor::try_now) that may be an attempt that
    /// began before the call, so it explains why a caller has waited in vain but says nothing about the present.
    pub fn last_failure(&self) -> Option<E> {
        self.0.last_failure.lock().clone()
    }

    /// Looks at the state.
    pub fn look<R>(&self, look: impl FnOnce(&Connectivity<C, E>) -> R) -> R {
        look(&self.0.connectivity.borrow())
    }

    /// Returns the connection, if there is one.
    pub fn up(&self) -> Option<C> {
        self.look(|state| match state {
            Connectivity::Up(connection) => Some(connection.clone()),
            Connectivity::Down(_) | Connectivity::Closed => None,
        })
    }

    /// Returns whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.look(|state| matches!(state, Connectivity::Closed))
    }

    /// Waits until `is_settled`, or until `until`. Returns what `answer` makes of the state then.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn settled<R>(
        &self,
        clock: &Clock,
        until: Moment,
        is_settled: impl Fn(&Connectivity<C, E>) -> bool,
        answer: impl FnOnce(&Connectivity<C, E>) -> R,
    ) -> R {
        let mut states = self.0.connectivity.subscribe();
        let settled = clock.within(until, states.wait_for(is_settled)).await.and_then(Result::ok);
        match settled {
            Some(state) => answer(&state),
            None => self.look(answer),
        }
    }

    /// Does what [`settled`](Supervisor::settled) does, for a caller that needs a connection. If one has ended and no attempt has failed since,
    /// the next attempt is made at once. If that connection ends before the caller sees it, the pause after it is the first of the backoff.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn connected<R>(
        &self,
        clock: &Clock,
        until: Moment,
        is_settled: impl Fn(&Connectivity<C, E>) -> bool,
        answer: impl FnOnce(&Connectivity<C, E>) -> R,
    ) -> R {
        let _need = Need::new(&self.0.needed);
        self.reconnect_now();
        self.settled(clock, until, is_settled, answer).await
    }

    /// Notes why there is no connection. Returns the connection that this ends.
    pub fn fail(&self, failure: Option<E>) -> Option<C> {
        self.change(Connectivity::Down(failure), |_| true)
    }

    /// Ends the connection if it is the one that `is` tells. Returns it.
    pub fn cut(&self, is: impl FnOnce(&C) -> bool) -> Option<C> {
        self.change(Connectivity::Down(None), |state| matches!(state, Connectivity::Up(up) if is(up)))
    }

    /// If there is no connection: forgets the last failure and ends the pause after it. A failure that is noted from now on is of an attempt
    /// that began after this call, so it shows that there was no way to connect at that time.
    pub fn try_now(&self) {
        self.change(Connectivity::Down(None), |state| {
            let is_down = matches!(state, Connectivity::Down(_));
            if is_down {
                self.0.hurried.store(true, Ordering::SeqCst);
            }
            is_down
        });
    }

    /// If a connection has ended and no attempt has failed since: ends the pause before the next attempt.
    pub fn reconnect_now(&self) {
        self.change(Connectivity::Down(None), |state| {
            let rests = matches!(state, Connectivity::Down(None)) && self.0.worked.load(Ordering::SeqCst);
            if rests {
                self.0.hurried.store(true, Ordering::SeqCst);
            }
            rests
        });
    }

    fn is_hurried(&self) -> bool {
        self.0.hurried.load(Ordering::SeqCst)
    }

    /// Closes it for good. Returns the connection that this ends.
    pub fn close(&self) -> Option<C> {
        self.change(Connectivity::Closed, |_| true)
    }

    /// Changes the state, unless it is closed or `is` says no.
    fn change(&self, to: Connectivity<C, E>, is: impl FnOnce(&Connectivity<C, E>) -> bool) -> Option<C> {
        let mut before = None;
        self.0.connectivity.send_if_modified(|state| {
            let changes = !matches!(state, Connectivity::Closed) && is(state);
            if changes {
                before = Some(std::mem::replace(state, to));
            }
            changes
        });
        match before {
            Some(Connectivity::Up(connection)) => Some(connection),
            _ => None,
        }
    }

    /// Makes one connection after the other until it is closed. `connect` makes connection number 1, 2 and so on. `serve` completes when
    /// that connection has ended, or when the state is not `Up` any more: see [`ended`](Supervisor::ended).
    ///
    /// It pauses for as long as `backoff` says: after a failure for the number of failures in a row, and after a connection that ended for
    /// the number of connections that have ended before anybody waited for the next one. After a connection that lasted twice the longest
    /// pause, and after an attempt that took that time, the next attempt is made at once. So it is after
    /// [`try_now`](Supervisor::try_now) and, if the last attempt worked, after [`reconnect_now`](Supervisor::reconnect_now).
    ///
    /// # Cancel safety
    /// May be dropped; nobody makes the next connection then.
    pub async fn run<A, S>(
        &self,
        clock: &Clock,
        backoff: Backoff,
        mut connect: impl FnMut(u64) -> A,
        mut serve: impl FnMut(C) -> S,
    ) where
        A: Future<Output = Result<C, E>>,
        S: Future<Output = ()>,
    {
        // Each has its own count, because the pause after a connection that ended is left out where a connection is needed. With one count, a
        // failure after some of those would cost its caller the longest pause.
        let (mut failures, mut ends) = (backoff, backoff);
        let mut number = 0;
        while !self.is_closed() {
            number += 1;
            self.0.worked.store(false, Ordering::SeqCst);
            self.0.hurried.store(false, Ordering::SeqCst);
            let began = clock.now();
            let backoff = match connect(number).await {
                Ok(connection) => {
                    self.0.worked.store(true, Ordering::SeqCst);
                    *self.0.last_failure.lock() = None;
                    self.change(Connectivity::Up(connection.clone()), |_| true);
                    serve(connection).await;
                    self.cut(|_| true);
                    failures.reset();
                    if self.0.needed.load(Ordering::SeqCst) > 0 {
                        ends.reset();
                    }
                    &mut ends
                }
                Err(failure) => {
                    *self.0.last_failure.lock() = Some(failure.clone());
                    self.change(Connectivity::Down(Some(failure)), |_| !self.is_hurried());
                    &mut failures
                }
            };
            if clock.now().since(began) >= 2 * backoff.longest() {
                backoff.reset();
                continue;
            }
            let next = clock.now() + backoff.pause();
            let is_over = |state: &_| self.is_hurried() || matches!(state, Connectivity::Closed);
            self.settled(clock, next, is_over, |_| ()).await;
        }
    }

    /// Completes when there is no connection.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn ended(&self) {
        let _ = self.0.connectivity.subscribe().wait_for(|state| !matches!(state, Connectivity::Up(_))).await;
    }
}

/// One caller that waits for a connection.
struct Need<'a>(&'a AtomicUsize);

impl Need<'_> {
    fn new(count: &AtomicUsize) -> Need<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Need(count)
    }
}

impl Drop for Need<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_connects_again_after_pauses_until_it_is_closed() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, &str>::default());
        let attempts = Mutex::new(Vec::new());
        let start = clock.now();
        let backoff = Backoff::new(MS, 4 * MS);
        // The first two attempts fail.
        let connect = |number| {
            attempts.lock().push(clock.now().since(start));
            async move { if number < 3 { Err("away") } else { Ok(number) } }
        };
        let serve = |_| {
            let supervisor = supervisor.clone();
            async move { supervisor.ended().await }
        };
        let mut run = pin!(supervisor.run(&clock, backoff, connect, serve));
        let mut pass = |time: Duration| {
            clock.advance_to(clock.now() + time);
            run.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        assert!(pass(Duration::ZERO).is_pending());
        supervisor.look(|state| assert!(matches!(state, Connectivity::Down(Some("away")))));
        assert!(pass(MS).is_pending() && pass(2 * MS).is_pending());
        assert_eq!(supervisor.up(), Some(3));
        assert_eq!(supervisor.cut(|up| *up == 2), None, "that is another one");
        assert_eq!(supervisor.cut(|up| *up == 3), Some(3));
        assert!(pass(Duration::ZERO).is_pending() && supervisor.up().is_none(), "it was short");
        assert!(pass(MS).is_pending());
        assert_eq!(supervisor.up(), Some(4));
        assert!(pass(8 * MS).is_pending());
        assert_eq!(supervisor.fail(None), Some(4));
        assert!(pass(Duration::ZERO).is_pending());
        assert_eq!(supervisor.up(), Some(5), "it had lasted, so the next one is made at once");
        let since = attempts.lock().iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(since, [0, 1, 3, 4, 12]);
        assert_eq!(supervisor.close(), Some(5));
        assert_eq!(pass(Duration::ZERO), Poll::Ready(()));
        assert!(supervisor.is_closed() && supervisor.fail(Some("late")).is_none() && supervisor.is_closed());
    }

    #[test]
    fn an_attempt_begins_after_the_call_that_asks_for_one() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, u64>::default());
        let hurry = supervisor.clone();
        // During the third attempt somebody asks for one that begins later.
        let connect = |number| {
            if number == 3 {
                hurry.try_now();
            }
            async move { if number < 5 { Err(number) } else { Ok(number) } }
        };
        let mut run =
            pin!(supervisor.run(&clock, Backoff::new(MS, MS), connect, async |_| supervisor.ended().await));
        let mut pass = || assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let failed =
            || supervisor.look(|state| matches!(state, Connectivity::Down(Some(number)) if *number == 1));
        pass();
        pass();
        assert!(failed(), "it pauses");
        supervisor.try_now();
        supervisor.look(|state| assert!(matches!(state, Connectivity::Down(None))));
        assert_eq!(supervisor.last_failure(), Some(1), "it still explains why there was no connection");
        pass();
        supervisor.look(|state| assert!(matches!(state, Connectivity::Down(Some(2))), "{state:?}"));
        supervisor.try_now();
        pass();
        supervisor.look(|state| assert!(matches!(state, Connectivity::Down(Some(4))), "{state:?}"));
        supervisor.try_now();
        pass();
        assert_eq!((supervisor.up(), supervisor.last_failure()), (Some(5), None));
        supervisor.try_now();
        assert_eq!(supervisor.up(), Some(5), "there is a connection");
    }

    #[test]
    fn a_connection_that_ended_is_made_again_at_once_where_that_is_asked_for() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, u64>::default());
        // The third attempt fails.
        let connect = |number| async move { if number == 3 { Err(number) } else { Ok(number) } };
        let mut run =
            pin!(supervisor.run(&clock, Backoff::new(MS, MS), connect, async |_| supervisor.ended().await));
        let mut pass = || assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        pass();
        for number in [1, 2] {
            supervisor.reconnect_now();
            assert_eq!(supervisor.cut(|_| true), Some(number), "there was a connection");
            pass();
            assert_eq!(supervisor.up(), None, "it pauses");
            supervisor.reconnect_now();
            pass();
        }
        supervisor.reconnect_now();
        pass();
        supervisor.look(|state| assert!(matches!(state, Connectivity::Down(Some(3))), "{state:?}"));
        clock.advance_to(clock.now() + MS);
        pass();
        assert_eq!(supervisor.up(), Some(4));
    }

    #[test]
    fn cuts_in_a_row_do_not_lengthen_the_pause_after_an_attempt_that_fails() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, u64>::default());
        // Each fifth attempt fails, as if that connection were cut before it is ready.
        let connect =
            |number: u64| async move { if number.is_multiple_of(5) { Err(number) } else { Ok(number) } };
        let backoff = Backoff::new(MS, 64 * MS);
        let mut run = pin!(supervisor.run(&clock, backoff, connect, async |_| supervisor.ended().await));
        let mut pass = || assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        pass();
        for number in 1..50 {
            if number % 5 == 0 {
                supervisor
                    .look(|state| assert!(matches!(state, Connectivity::Down(Some(at)) if *at == number)));
                clock.advance_to(clock.now() + MS);
            } else {
                assert_eq!(supervisor.cut(|_| true), Some(number));
                pass();
                supervisor.reconnect_now();
            }
            pass();
        }
    }

    #[test]
    fn a_connection_that_ends_before_its_caller_sees_it_costs_the_first_pause() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, u64>::default());
        // The sixth one is cut before anybody sees it.
        let serve = async |number| {
            supervisor.cut(|_| number == 6);
            supervisor.ended().await;
        };
        let connect = |number| async move { Ok(number) };
        let mut run = pin!(supervisor.run(&clock, Backoff::new(MS, 64 * MS), connect, serve));
        let mut cx = Context::from_waker(Waker::noop());
        let mut pass = || assert!(run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        pass();
        for number in 1..=5 {
            assert_eq!(supervisor.cut(|_| true), Some(number));
            pass();
            if number < 5 {
                supervisor.reconnect_now();
                pass();
            }
        }
        let is_up = |state: &Connectivity<u64, u64>| matches!(state, Connectivity::Up(_));
        {
            let until = clock.now() + 64 * MS;
            let mut waits = pin!(supervisor.connected(&clock, until, is_up, is_up));
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            pass();
            assert_eq!(supervisor.up(), None, "the sixth has ended already");
            clock.advance_to(clock.now() + MS);
            pass();
            assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(true));
        }
        for (number, pause) in [(7, 2), (8, 4)] {
            assert_eq!(supervisor.cut(|_| true), Some(number));
            pass();
            clock.advance_to(clock.now() + (pause - 1) * MS);
            pass();
            assert_eq!(supervisor.up(), None, "nobody waits, so the pauses grow");
            clock.advance_to(clock.now() + MS);
            pass();
        }
        assert_eq!(supervisor.up(), Some(9));
    }

    #[test]
    fn a_wait_ends_with_the_state_that_it_waits_for_or_in_time() {
        let (clock, supervisor) = (Clock::manual(), Supervisor::<u64, &str>::default());
        let failed = |state: &Connectivity<u64, &str>| matches!(state, Connectivity::Down(Some(_)));
        let until = clock.now() + MS;
        let wait = || supervisor.settled(&clock, until, failed, failed);
        let (mut settles, mut late) = (pin!(wait()), pin!(wait()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(settles.as_mut().poll(&mut cx).is_pending() && late.as_mut().poll(&mut cx).is_pending());
        supervisor.fail(Some("away"));
        assert_eq!(settles.as_mut().poll(&mut cx), Poll::Ready(true));
        supervisor.fail(None);
        clock.advance_to(until);
        assert_eq!(late.as_mut().poll(&mut cx), Poll::Ready(false));
    }
}
