//! A client of the engine that is measured.

use fencepost::{Locks, Mutex};
use tokio::runtime::{Builder, Runtime};

/// The lock of every measurement that needs but one.
pub(crate) const NAME: &str = "crowded";

/// A client of the server at `url`.
pub(crate) async fn connect(url: &str) -> Locks {
    Locks::connect(url).await.expect("a server that answers")
}

/// Creates the runtime of most measurements: one thread.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Creates one with two threads, for measurements in which many tasks run.
pub(crate) fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Takes a lock that nobody else wants, and gives it back.
pub(crate) async fn cycle(lock: &Mutex) {
    lock.lock().await.expect("nobody else wants it").release().await.expect("it is held");
}
