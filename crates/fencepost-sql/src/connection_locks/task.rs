//! The driver's task of a connection.

use std::pin::pin;

use fencepost_core::Runtime;
use futures_util::future::select;
use tokio::sync::{oneshot, watch};

/// The driver's task of a connection, on the client's own thread. Dropping this ends the connection.
pub struct ConnectionTask {
    ended: watch::Receiver<bool>,
    _stop: oneshot::Sender<()>,
}

impl ConnectionTask {
    /// Starts the task. `run` ends when the connection ends, and is dropped when this is dropped.
    pub fn start(runtime: &Runtime, run: impl Future<Output = ()> + Send + 'static) -> ConnectionTask {
        let (_stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = watch::channel(false);
        runtime.spawn(async move {
            {
                let run = pin!(run);
                let _ = select(run, stopped).await;
            }
            let _ = ending.send(true);
        });
        ConnectionTask { ended, _stop }
    }

    /// Returns whether the connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        has_ended(&self.ended)
    }

    /// Returns a function that tells whether the connection has ended.
    pub fn watch(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let ended = self.ended.clone();
        move || has_ended(&ended)
    }

    /// Returns a future that is ready when the connection has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }
}

/// Returns whether the task has ended. A task that panicked has sent nothing, but its sender was dropped.
fn has_ended(ended: &watch::Receiver<bool>) -> bool {
    *ended.borrow() || ended.has_changed().is_err()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_core::{Clock, Spawner, Task};

    use super::*;

    /// A runtime that survives the panics of its tasks.
    struct Tokio;

    impl Spawner for Tokio {
        fn spawn(&self, task: Task) {
            tokio::spawn(task);
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_has_ended() {
        let runtime = Runtime::for_client(1, Clock::boot(), Arc::new(Tokio));
        let waits = ConnectionTask::start(&runtime, std::future::pending());
        let panics = ConnectionTask::start(&runtime, async { panic!("as a driver might") });
        panics.ended().await;
        assert!(panics.has_ended() && panics.watch()());
        assert!(!waits.has_ended() && !waits.watch()());
    }
}
