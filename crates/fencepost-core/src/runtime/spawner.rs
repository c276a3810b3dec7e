//! Where a client's own tasks run.

use std::pin::Pin;

use tokio::runtime::Handle;

/// A task for a [`Spawner`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a client's own tasks run: its thread in production, a simulation's executor in tests.
pub trait Spawner: Send + Sync + 'static {
    /// Runs `task` to its end, or until the host stops. May be called from any thread, with or without a runtime.
    fn spawn(&self, task: Task);
}

/// A tokio runtime.
pub(crate) struct HandleSpawner(pub(crate) Handle);

impl Spawner for HandleSpawner {
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}
