//! The driver's task of a connection, and how others learn of its end.

use std::pin::pin;
use std::sync::Arc;

use fencepost_core::Runtime;
use fencepost_core::sync::Mutex;
use futures_util::future::select;
use tokio::sync::oneshot;

/// The driver's task of a connection, on the client's own thread. Dropping this ends the connection.
pub struct ConnectionTask {
    end: ConnectionEnd,
    _stop: oneshot::Sender<()>,
}

/// The end of a connection. Clones share it.
#[derive(Clone, Default)]
pub struct ConnectionEnd(Arc<Mutex<EndState>>);

#[derive(Default)]
struct EndState {
    has_ended: bool,
    /// `then` has been called after the end, if there was one.
    has_told: bool,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl ConnectionTask {
    /// Starts the task. `run` ends when the connection ends, and is dropped when this is dropped.
    pub fn start(runtime: &Runtime, run: impl Future<Output = ()> + Send + 'static) -> ConnectionTask {
        let (_stop, stopped) = oneshot::channel::<()>();
        let end = ConnectionEnd::default();
        let ending = Ending(end.clone());
        runtime.spawn(async move {
            let run = pin!(run);
            // Dropped before `run`, also if that panics.
            let _ending = ending;
            let _ = select(run, stopped).await;
        });
        ConnectionTask { end, _stop }
    }

    /// Returns whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.has_ended()
    }

    /// Returns the end of the connection.
    #[must_use]
    pub fn end(&self) -> &ConnectionEnd {
        &self.end
    }
}

impl ConnectionEnd {
    /// Returns whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.lock().has_ended
    }

    /// Returns whether the connection has ended and its holders have been told.
    pub(super) fn has_told(&self) -> bool {
        self.0.lock().has_told
    }

    /// Calls `then` when the connection ends, or at once if it has ended. The driver's task calls it itself, because the server frees the
    /// locks of a connection as soon as that has ended. A later call of this replaces `then`.
    pub fn then(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if !state.has_ended {
            state.then = Some(Box::new(then));
            return;
        }
        drop(state);
        then();
    }

    /// Notes that the connection has ended, or must not be used any more. Its holders are told now.
    pub fn note(&self) {
        let then = {
            let mut state = self.0.lock();
            if std::mem::replace(&mut state.has_ended, true) {
                return;
            }
            state.then.take()
        };
        if let Some(then) = then {
            then();
        }
        self.0.lock().has_told = true;
    }
}

/// Notes the end of a connection when this is dropped.
struct Ending(ConnectionEnd);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.note();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::task::{Context, Waker};

    use fencepost_core::{Clock, Spawner, Task};

    use super::*;

    /// A runtime that survives the panics of its tasks.
    struct Tokio;

    impl Spawner for Tokio {
        fn spawn(&self, task: Task) {
            tokio::spawn(task);
        }
    }

    /// A runtime whose tasks the test polls.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Task>>);

    impl Spawner for Kept {
        fn spawn(&self, task: Task) {
            self.0.lock().push(task);
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_has_ended() {
        let runtime = Runtime::for_client(1, Clock::boot(), Arc::new(Tokio));
        let waits = ConnectionTask::start(&runtime, std::future::pending());
        let panics = ConnectionTask::start(&runtime, async { panic!("as a driver might") });
        let (sender, told) = oneshot::channel();
        panics.end().then(move || sender.send(()).expect("the test waits"));
        told.await.expect("it is told");
        assert!(panics.has_ended() && !waits.has_ended());
    }

    /// The server frees the locks at that moment, so their holders must not wait for another task.
    #[test]
    fn the_task_itself_tells_its_end() {
        let kept = Arc::new(Kept::default());
        let runtime = Runtime::for_client(1, Clock::boot(), Arc::clone(&kept) as Arc<dyn Spawner>);
        let connection = ConnectionTask::start(&runtime, async {});
        let told = Arc::new(AtomicBool::new(false));
        let tell = |told: &Arc<AtomicBool>| {
            let told = Arc::clone(told);
            move || told.store(true, SeqCst)
        };
        connection.end().then(tell(&told));
        let mut tasks = std::mem::take(&mut *kept.0.lock());
        assert_eq!(tasks.len(), 1, "the driver's task is the only one");
        assert!(!told.load(SeqCst) && !connection.has_ended());
        assert!(tasks[0].as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(told.load(SeqCst) && connection.has_ended());
        // Whoever comes later is told at once.
        let late = Arc::new(AtomicBool::new(false));
        connection.end().then(tell(&late));
        assert!(late.load(SeqCst));
    }
}
