//! The requests with an idempotency key that this copy of the service works on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Name;
use fencepost_core::sync::Mutex;
use tokio::sync::watch;

use crate::grant::Grant;
use crate::problem::Answer;

/// How long a place in the queue stays after its last request has ended.
const LINGER: Duration = Duration::from_secs(5);

/// The work on keys, by the names of their records.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<Name, Work>>>);

/// The work on a key. If it waits in the queue, it goes on for [`LINGER`] when no request is left.
#[derive(Clone)]
pub(crate) struct Work {
    request: String,
    /// It has a place in the queue.
    pub(crate) waits: bool,
    outcome: watch::Receiver<Option<Answer<Grant>>>,
    /// Counts the requests by its receivers.
    requests: Arc<watch::Sender<()>>,
}

/// A request that has joined the work.
pub(crate) struct Joined {
    pub(crate) work: Work,
    /// Dropped, it is no longer counted.
    pub(crate) request: watch::Receiver<()>,
}

impl Running {
    /// Joins the work on the record, or begins it as `begin` says. `None`: the work is for another request.
    pub(crate) fn join<W>(
        &self,
        record: &Name,
        request: &str,
        waits: bool,
        begin: impl FnOnce() -> Answer<W>,
    ) -> Answer<Option<Joined>>
    where
        W: Future<Output = Answer<Grant>> + Send + 'static,
    {
        let mut running = self.0.lock();
        if let Some(work) = running.get(record) {
            let joined = || Joined { work: work.clone(), request: work.requests.subscribe() };
            return Ok((work.request == request).then(joined));
        }
        let begun = begin()?;
        let (report, outcome) = watch::channel(None);
        let (requests, receiver) = watch::channel(());
        let work = Work { request: request.to_owned(), waits, outcome, requests: Arc::new(requests) };
        running.insert(record.clone(), work.clone());
        let listed = Listed { running: self.clone(), record: record.clone() };
        let requests = Arc::clone(&work.requests);
        tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = begun => Some(outcome),
                () = abandoned(&requests), if waits => None,
            };
            // Before the report, so that the next request asks the engine.
            drop(listed);
            report.send_replace(outcome);
        });
        Ok(Some(Joined { work, request: receiver }))
    }
}

impl Work {
    /// Returns the outcome when it is known. `None`: the work was given up.
    pub(crate) async fn outcome(&self) -> Option<Answer<Grant>> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }
}

/// Removes the work from the list when it ends, however it ends.
struct Listed {
    running: Running,
    record: Name,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.running.0.lock().remove(&self.record);
    }
}

/// Completes when no request was there for [`LINGER`].
async fn abandoned(requests: &watch::Sender<()>) {
    loop {
        requests.closed().await;
        tokio::time::sleep(LINGER).await;
        if requests.is_closed() {
            return;
        }
    }
}
