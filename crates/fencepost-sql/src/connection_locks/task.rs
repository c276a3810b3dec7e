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
        *self.ended.borrow()
    }

    /// Returns a function that tells whether the connection has ended.
    pub fn watch(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let ended = self.ended.clone();
        move || *ended.borrow()
    }

    /// Returns a future that is ready when the connection has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }
}
