//! Work that goes on although its caller does not poll it.

use std::future::Future;

use fencepost_core::Runtime;
use tokio::sync::oneshot;

use crate::failure::Failure;

/// Runs `work` on the client's own thread. Work that others wait for must not depend on how often a caller polls.
///
/// # Cancel safety
/// May be dropped; after its first poll the work goes on.
pub(crate) async fn on_own_thread<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, outcome) = oneshot::channel();
    runtime.spawn(async move {
        // An outcome that nobody takes is dropped.
        let _ = sender.send(work.await);
    });
    outcome.await.unwrap_or_else(|_| Err(Failure::closed()))
}
