//! Work that several callers need at the same time is done once.

use std::sync::Arc;

use tokio::sync::watch;

use crate::runtime::Runtime;
use crate::sync::Mutex;

/// Runs one piece of work at a time and gives its result to all callers that asked while it ran.
pub struct SingleFlight<T>(Arc<Mutex<Option<watch::Receiver<Option<T>>>>>);

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
    /// because a caller may be dropped. `None`: the client's thread has ended.
    ///
    /// # Cancel safety
    /// May be dropped; the work goes on.
    pub async fn join(&self, runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let mut result = {
            let mut running = self.0.lock();
            match &*running {
                Some(result) => result.clone(),
                None => {
                    let (sender, result) = watch::channel(None);
                    *running = Some(result.clone());
                    let own = Arc::clone(&self.0);
                    runtime.spawn(async move {
                        let done = work.await;
                        *own.lock() = None;
                        let _ = sender.send(Some(done));
                    });
                    result
                }
            }
        };
        result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone())
    }
}
