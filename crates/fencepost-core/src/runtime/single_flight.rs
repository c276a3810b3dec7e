//! Work that several callers need at the same time is done once.

use std::sync::Arc;

use tokio::sync::watch;

use crate::runtime::Runtime;
use crate::sync::Mutex;

/// Runs one piece of work at a time and gives its result to all callers that asked while it ran.
pub struct SingleFlight<T>(Slot<T>);

/// Where the result of the work arrives that is under way. `None`: there is no such work.
type Slot<T> = Arc<Mutex<Option<watch::Receiver<Option<T>>>>>;

impl<T> Default for SingleFlight<T> {
    fn default() -> SingleFlight<T> {
        SingleFlight(Arc::default())
    }
}

// By hand: a derive would require `T: Clone`.
impl<T> Clone for SingleFlight<T> {
    fn clone(&self) -> SingleFlight<T> {
        SingleFlight(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Returns the result of the work that is under way, or starts `work` if there is none. The work runs on the client's own thread,
    /// because a caller may be dropped. `None`: the client's thread has ended, or the work has panicked.
    ///
    /// # Cancel safety
    /// May be dropped; the work goes on.
    pub async fn join(&self, runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (mut result, flight) = {
            let mut running = self.0.lock();
            match &*running {
                Some(result) => (result.clone(), None),
                None => {
                    let (sender, result) = watch::channel(None);
                    *running = Some(result.clone());
                    (result, Some(Flight { slot: Arc::clone(&self.0), sender, result: None }))
                }
            }
        };
        if let Some(flight) = flight {
            runtime.spawn(async move { flight.end_with(work.await) });
        }
        result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone())
    }
}

/// Work that is under way. Its drop ends it, with its result or without one.
struct Flight<T> {
    slot: Slot<T>,
    sender: watch::Sender<Option<T>>,
    result: Option<T>,
}

impl<T> Flight<T> {
    fn end_with(mut self, result: T) {
        self.result = Some(result);
    }
}

impl<T> Drop for Flight<T> {
    fn drop(&mut self) {
        // Whoever comes from now on starts the next work.
        let ended = self.slot.lock().take();
        drop(ended);
        if let Some(result) = self.result.take() {
            let _ = self.sender.send(Some(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::runtime::spawner::{Spawner, Task};
    use crate::time::Clock;

    /// Runs each task to its end where it is spawned. A task that panics ends alone, as on the client's thread.
    struct AtOnce;

    impl Spawner for AtOnce {
        fn spawn(&self, mut task: Task) {
            let run = || task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let _ = catch_unwind(AssertUnwindSafe(run));
        }
    }

    #[test]
    fn work_that_panics_does_not_prevent_later_work() {
        let runtime = Runtime::for_client(1, Clock::manual(), Arc::new(AtOnce));
        let flight = SingleFlight::default();
        let join = |panics: bool| {
            let work = async move {
                assert!(!panics, "on purpose");
                7
            };
            pin!(flight.join(&runtime, work)).poll(&mut Context::from_waker(Waker::noop()))
        };
        assert_eq!(join(true), Poll::Ready(None));
        assert_eq!(join(false), Poll::Ready(Some(7)));
    }
}
