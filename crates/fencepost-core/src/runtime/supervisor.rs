//! A connection that is made again whenever it ends.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

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
pub struct Supervisor<C, E>(Arc<watch::Sender<Connectivity<C, E>>>);

impl<C, E> Clone for Supervisor<C, E> {
    fn clone(&self) -> Supervisor<C, E> {
        Supervisor(Arc::clone(&self.0))
    }
}

impl<C, E> Default for Supervisor<C, E> {
    fn default() -> Supervisor<C, E> {
        Supervisor(Arc::new(watch::Sender::new(Connectivity::Down(None))))
    }
}

impl<C: Clone, E> Supervisor<C, E> {
    /// Looks at the state.
    pub fn look<R>(&self, look: impl FnOnce(&Connectivity<C, E>) -> R) -> R {
        look(&self.0.borrow())
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
        let mut states = self.0.subscribe();
        let settled = clock.within(until, states.wait_for(is_settled)).await.and_then(Result::ok);
        match settled {
            Some(state) => answer(&state),
            None => self.look(answer),
        }
    }

    /// Notes why there is no connection. Returns the connection that this ends.
    pub fn fail(&self, failure: Option<E>) -> Option<C> {
        self.change(Connectivity::Down(failure), |_| true)
    }

    /// Ends the connection if it is the one that `is` tells. Returns it.
    pub fn cut(&self, is: impl FnOnce(&C) -> bool) -> Option<C> {
        self.change(Connectivity::Down(None), |state| matches!(state, Connectivity::Up(up) if is(up)))
    }

    /// Closes it for good. Returns the connection that this ends.
    pub fn close(&self) -> Option<C> {
        self.change(Connectivity::Closed, |_| true)
    }

    /// Changes the state, unless it is closed or `is` says no.
    fn change(&self, to: Connectivity<C, E>, is: impl FnOnce(&Connectivity<C, E>) -> bool) -> Option<C> {
        let mut before = None;
        self.0.send_if_modified(|state| {
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
    /// After a failure it pauses for as long as `backoff` says. After a connection that lasted twice the longest pause, and after an
    /// attempt that took that time, the next attempt is made at once.
    ///
    /// # Cancel safety
    /// May be dropped; nobody makes the next connection then.
    pub async fn run<A, S>(
        &self,
        clock: &Clock,
        mut backoff: Backoff,
        mut connect: impl FnMut(u64) -> A,
        mut serve: impl FnMut(C) -> S,
    ) where
        A: Future<Output = Result<C, E>>,
        S: Future<Output = ()>,
    {
        let mut number = 0;
        while !self.is_closed() {
            number += 1;
            let began = clock.now();
            match connect(number).await {
                Ok(connection) => {
                    self.change(Connectivity::Up(connection.clone()), |_| true);
                    serve(connection).await;
                    self.cut(|_| true);
                }
                Err(failure) => drop(self.fail(Some(failure))),
            }
            if clock.now().since(began) >= 2 * backoff.longest() {
                backoff.reset();
                continue;
            }
            let next = clock.now() + backoff.pause();
            self.settled(clock, next, |state| matches!(state, Connectivity::Closed), |_| ()).await;
        }
    }

    /// Completes when there is no connection.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn ended(&self) {
        let _ = self.0.subscribe().wait_for(|state| !matches!(state, Connectivity::Up(_))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::sync::Mutex;

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
        assert!(pass(4 * MS).is_pending());
        assert_eq!(supervisor.up(), Some(4));
        assert!(pass(8 * MS).is_pending());
        assert_eq!(supervisor.fail(None), Some(4));
        assert!(pass(Duration::ZERO).is_pending());
        assert_eq!(supervisor.up(), Some(5), "it had lasted, so the next one is made at once");
        let since = attempts.lock().iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(since, [0, 1, 3, 7, 15]);
        assert_eq!(supervisor.close(), Some(5));
        assert_eq!(pass(Duration::ZERO), Poll::Ready(()));
        assert!(supervisor.is_closed() && supervisor.fail(Some("late")).is_none() && supervisor.is_closed());
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
