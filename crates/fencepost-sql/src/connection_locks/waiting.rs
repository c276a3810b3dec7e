//! A claim that waits in a task of its own.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::{Claim, Runtime, Waiter};
use futures_util::future::{BoxFuture, Either, select};

use crate::connection_locks::turns::{Turn, Turns};
use crate::failure::Failure;

/// A claim that waits for its turn, for a connection of its own, and then in the server's queue: a task on the client's own thread, which
/// runs to its end. Dropping this cancels it, and drops an outcome that nobody took.
pub(super) struct Waiting<T>(Arc<WaitingTask<T>>);

/// The side of the task.
pub(super) struct WaitingTask<T> {
    slot: Waiter<Slot<T>>,
    cancelled: Waiter<bool>,
}

struct Slot<T> {
    outcome: Option<T>,
    /// The server answers, and the claim waits for others.
    queued: bool,
    /// The task has ended.
    ended: bool,
    /// Nobody takes the outcome any more.
    abandoned: bool,
}

impl<T: Send + 'static> Waiting<T> {
    /// Starts `task`, which has no outcome if it was cancelled.
    pub(super) fn start<F>(runtime: &Runtime, task: impl FnOnce(Arc<WaitingTask<T>>) -> F) -> Waiting<T>
    where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let slot = Waiter::new(Slot { outcome: None, queued: false, ended: false, abandoned: false });
        let own = Arc::new(WaitingTask { slot, cancelled: Waiter::default() });
        let (shared, work) = (Arc::clone(&own), task(Arc::clone(&own)));
        runtime.spawn(async move {
            let mut outcome = work.await;
            shared.slot.tell(|slot| {
                slot.ended = true;
                if !slot.abandoned {
                    slot.outcome = outcome.take();
                }
            });
        });
        Waiting(own)
    }

    /// Takes the outcome, if it is there.
    pub(super) fn take(&self) -> Option<T> {
        self.0.slot.with(|slot| slot.outcome.take())
    }

    /// Returns when the claim is queued, or the task has ended, or the claim leaves.
    pub(super) async fn queued(&self, claim: &Claim) {
        poll_fn(|cx| {
            if claim.is_leaving() {
                return Poll::Ready(());
            }
            self.0.slot.poll(cx, |slot| slot.ended || slot.queued)
        })
        .await;
    }

    /// Is ready when the task has ended.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.slot.poll(cx, |slot| slot.ended)
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        self.0.cancelled.tell(|cancelled| *cancelled = true);
        // A lock that nobody took ends with its connection.
        let outcome = self.0.slot.with(|slot| {
            slot.abandoned = true;
            slot.outcome.take()
        });
        drop(outcome);
    }
}

impl<T> WaitingTask<T> {
    /// Notes whether the claim is queued.
    pub(super) fn set_queued(&self, queued: bool) {
        self.slot.tell(|slot| slot.queued = queued);
    }

    /// Returns when the claim was given up.
    pub(super) async fn cancelled(&self) {
        poll_fn(|cx| self.cancelled.poll(cx, |cancelled| *cancelled)).await;
    }

    /// Waits for the turn of the claim. `None`: it was given up.
    pub(super) async fn turn(
        &self,
        turns: &Turns,
        claim: &Claim,
        reach: impl Fn() -> BoxFuture<'static, Result<(), Failure>>,
    ) -> Result<Option<Turn>, Failure> {
        let turn = pin!(turns.take(&claim.want().name, &claim.runtime, reach, || self.set_queued(true)));
        match select(turn, pin!(self.cancelled())).await {
            Either::Left((turn, _)) => turn.map(Some),
            Either::Right(_) => Ok(None),
        }
    }
}
