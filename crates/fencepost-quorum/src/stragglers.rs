//! Requests that nobody waits for any more.

use fencepost_core::sync::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_core::{Attempt, Effect, Leave, Runtime};

use super::node_claim::{Answer, Straggler};

/// Late replies wait this long for the next claim of this client. Then the cleaner takes them.
const LINGER: Duration = Duration::from_millis(20);
/// Late replies that are polled for each new one: more than one, so the list does not grow.
const HEARD: usize = 4;

/// Those of all claims. Their answers come while the next claim is at work, and are taken in by it: to wake the client's own
/// thread for each would cost more than the request. Requests without an answer by then go to the cleaner.
#[derive(Default)]
pub(crate) struct Stragglers(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    stragglers: VecDeque<Straggler>,
    /// The cleaner comes for them.
    told: bool,
}

impl Stragglers {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock()
    }

    pub(crate) fn add(self: &Arc<Self>, mut straggler: Straggler, runtime: &Runtime) {
        if straggler.is_done() {
            return;
        }
        let mut waiting = self.waiting();
        for _ in 0..HEARD.min(waiting.stragglers.len()) {
            let Some(mut one) = waiting.stragglers.pop_front() else { break };
            if !one.is_done() {
                waiting.stragglers.push_back(one);
            }
        }
        waiting.stragglers.push_back(straggler);
        let told = std::mem::replace(&mut waiting.told, true);
        drop(waiting);
        if !told {
            let visit = Visit { lingering: Arc::clone(self), runtime: runtime.clone(), done: false };
            runtime.cleaner().finish(visit.run());
        }
    }
}

impl Straggler {
    /// Has its answer come? Nobody is woken by it.
    fn is_done(&mut self) -> bool {
        match self.away.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => false,
            Poll::Ready((_, Answer::Left(Ok(_)))) => {
                self.node.answered();
                true
            }
            Poll::Ready((entry, answer)) => {
                // Once more, by the cleaner.
                self.away = Box::pin(std::future::ready((entry, answer)));
                false
            }
        }
    }

    /// Leaves it to the cleaner: what is under way is answered first, then nothing of the claim is left. A grant that is to be detached stays,
    /// if the node can do that.
    pub(crate) fn clean_up(self, runtime: &Runtime) {
        let Straggler { node, away, how, until } = self;
        let (owed, clock) = (node.owes(), runtime.clock().clone());
        runtime.cleaner().finish(async move {
            let answered = clock.within(until, away).await;
            drop(owed);
            let Some((mut entry, answer)) = answered else { return };
            match answer {
                Answer::Left(Ok(_)) | Answer::Detached(Ok(())) | Answer::Attempt(Ok(Attempt::Gone)) => {
                    node.answered();
                }
                Answer::Attempt(Err(error)) if error.effect() == Effect::None => node.failed(clock.now()),
                Answer::Raised(..) if how == Leave::Detach => {
                    let detached = clock.within(until, entry.detach()).await;
                    match detached {
                        Some(Ok(())) => node.answered(),
                        _ => entry.clean_up_until(how, until).await,
                    }
                }
                _ => entry.clean_up_until(how, until).await,
            }
        });
    }
}

/// The cleaner's visit. Dropped by a host that has stopped, it lets go of them: nobody sees to them any more.
struct Visit {
    lingering: Arc<Stragglers>,
    runtime: Runtime,
    done: bool,
}

impl Visit {
    async fn run(mut self) {
        let clock = self.runtime.clock();
        clock.sleep_until(clock.now() + LINGER).await;
        self.done = true;
        for mut straggler in self.take() {
            if !straggler.is_done() {
                straggler.clean_up(&self.runtime);
            }
        }
    }

    fn take(&self) -> VecDeque<Straggler> {
        let mut waiting = self.lingering.waiting();
        waiting.told = false;
        std::mem::take(&mut waiting.stragglers)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.done {
            drop(self.take());
        }
    }
}

#[cfg(test)]
mod tests;
