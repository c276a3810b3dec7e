//! The requests with an idempotency key that this copy of the service works on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use fencepost_core::Name;
use fencepost_core::sync::Mutex;
use tokio::sync::watch;

use crate::grant::Grant;
use crate::problem::{Answer, Problem};

/// How long a place in the queue stays after its last request has ended.
const LINGER: Duration = Duration::from_secs(5);

/// For how long a key is refused after it was withdrawn: a request for it may still be on its way.
const WITHDRAWN: Duration = Duration::from_secs(20);

/// The work on keys, by the names of their records.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    work: HashMap<Name, Work>,
    /// The keys that were withdrawn lately, in that order.
    withdrawn: VecDeque<(Instant, Name)>,
}

impl State {
    fn is_withdrawn(&mut self, record: &Name) -> bool {
        while self.withdrawn.front().is_some_and(|(at, _)| at.elapsed() > WITHDRAWN) {
            self.withdrawn.pop_front();
        }
        self.withdrawn.iter().any(|(_, other)| other == record)
    }
}

/// The work on a key. If it waits in the queue, it goes on for [`LINGER`] when no request is left.
#[derive(Clone)]
pub(crate) struct Work {
    request: String,
    /// It has a place in the queue.
    pub(crate) waits: bool,
    outcome: watch::Receiver<Option<Answer<Grant>>>,
    /// Whether the engine has confirmed the place.
    queued: watch::Receiver<bool>,
    /// Ends the work.
    withdrawn: Arc<watch::Sender<bool>>,
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
        begin: impl FnOnce(Arc<watch::Sender<bool>>) -> Answer<W>,
    ) -> Answer<Option<Joined>>
    where
        W: Future<Output = Answer<Grant>> + Send + 'static,
    {
        let mut state = self.0.lock();
        if state.is_withdrawn(record) {
            return Err(withdrawn());
        }
        if let Some(work) = state.work.get(record) {
            let joined = || Joined { work: work.clone(), request: work.requests.subscribe() };
            return Ok((work.request == request).then(joined));
        }
        let (tell, queued) = watch::channel(false);
        let begun = begin(Arc::new(tell))?;
        let (report, outcome) = watch::channel(None);
        let (requests, receiver) = watch::channel(());
        let (withdraw, mut told) = watch::channel(false);
        let work = Work {
            request: request.to_owned(),
            waits,
            outcome,
            queued,
            withdrawn: Arc::new(withdraw),
            requests: Arc::new(requests),
        };
        state.work.insert(record.clone(), work.clone());
        let listed = Listed { running: self.clone(), record: record.clone() };
        let requests = Arc::clone(&work.requests);
        tokio::spawn(async move {
            let outcome = tokio::select! {
                outcome = begun => Some(outcome),
                () = abandoned(&requests), if waits => None,
                _ = told.wait_for(|told| *told) => Some(Err(withdrawn())),
            };
            // Before the report, so that the next request asks the engine.
            drop(listed);
            report.send_replace(outcome);
        });
        Ok(Some(Joined { work, request: receiver }))
    }

    /// Ends the work on the record, and refuses later requests for it. Returns whether there was work.
    pub(crate) fn withdraw(&self, record: &Name) -> bool {
        let mut state = self.0.lock();
        if !state.is_withdrawn(record) {
            state.withdrawn.push_back((Instant::now(), record.clone()));
        }
        state.work.get(record).is_some_and(|work| work.withdrawn.send(true).is_ok())
    }
}

fn withdrawn() -> Problem {
    Problem::new(StatusCode::GONE, "lease-ended", "the request with this Idempotency-Key was withdrawn")
}

impl Work {
    /// Returns the outcome when it is known. `None`: the work was given up.
    pub(crate) async fn outcome(&self) -> Option<Answer<Grant>> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }

    /// Completes when the engine has confirmed the place in the queue.
    pub(crate) async fn queued(&self) {
        if self.queued.clone().wait_for(|queued| *queued).await.is_err() {
            // The work has an outcome instead.
            std::future::pending().await
        }
    }
}

/// Removes the work from the list when it ends, however it ends.
struct Listed {
    running: Running,
    record: Name,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.running.0.lock().work.remove(&self.record);
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
