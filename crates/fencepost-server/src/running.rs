//! The requests with an idempotency key that this copy of the service works on.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use fencepost_core::Name;
use fencepost_core::sync::Mutex;
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::grant::Grant;
use crate::problem::{Answer, Problem};
use crate::rights::caller::Caller;

/// How long a position in the queue, or a grant that no request has taken, stays after the last request has ended.
const LINGER: Duration = Duration::from_secs(5);

/// For how long a key is refused after it was withdrawn: a request for it may still be on its way.
const WITHDRAWN: Duration = Duration::from_secs(20);

/// The work on keys, by the names of their records.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    work: HashMap<Name, Work>,
    /// The keys that were withdrawn lately, and when, in that order.
    withdrawn: VecDeque<(Instant, Name)>,
    /// The same keys. Each request looks for its own while all others wait.
    withdrawn_keys: HashSet<Name>,
}

impl State {
    fn is_withdrawn(&mut self, record: &Name) -> bool {
        while let Some((_, old)) = self.withdrawn.pop_front_if(|(at, _)| at.elapsed() > WITHDRAWN) {
            self.withdrawn_keys.remove(&old);
        }
        self.withdrawn_keys.contains(record)
    }
}

/// The work on a key. It goes on for [`LINGER`] when no request is left.
#[derive(Clone)]
pub(crate) struct Work {
    request: String,
    /// It has a position in the queue.
    pub(crate) waits: bool,
    outcome: watch::Receiver<Option<Answer<Grant>>>,
    /// Whether the engine has confirmed the position.
    queued: watch::Receiver<bool>,
    /// Ends the work.
    withdrawn: Arc<watch::Sender<bool>>,
    /// The requests that have joined it.
    requests: Arc<watch::Sender<Callers>>,
}

/// The callers of the requests that have joined the work and wait for it. They have one name, but each may have an access token of its own.
#[derive(Default)]
struct Callers {
    joined: u64,
    waiting: BTreeMap<u64, Caller>,
    /// The last request that waited was told that its time is over: the position in the queue is left at once.
    timed_out: bool,
    /// The grant is for one of them. It is not given up any more.
    granted: bool,
}

impl Callers {
    /// The last request was told that its time is over, and no grant is for it.
    fn is_left(&self) -> bool {
        self.timed_out && !self.granted
    }
}

/// The end of a request whose time is over.
pub(crate) enum Timed {
    /// The grant is for it all the same.
    Granted,
    Out,
}

/// A request that has joined the work.
pub(crate) struct Joined {
    pub(crate) work: Work,
    /// Dropped, it is no longer counted.
    pub(crate) request: Counted,
    /// No other request had joined.
    pub(crate) is_alone: bool,
}

/// A request that counts until it is dropped.
pub(crate) struct Counted {
    requests: Arc<watch::Sender<Callers>>,
    number: u64,
}

impl Counted {
    /// Ends the request because its time is over. If no other request waits, the position in the queue is left.
    pub(crate) fn time_out(self) -> Timed {
        let mut timed = Timed::Out;
        self.requests.send_modify(|callers| {
            callers.waiting.remove(&self.number);
            if callers.granted {
                timed = Timed::Granted;
            }
            callers.timed_out = callers.waiting.is_empty();
        });
        timed
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.requests.send_modify(|callers| drop(callers.waiting.remove(&self.number)));
    }
}

/// The requests of the work, as the work knows them.
pub(crate) struct Requests {
    queued: Arc<watch::Sender<bool>>,
    callers: Arc<watch::Sender<Callers>>,
}

impl Requests {
    /// Returns what tells the requests that the engine has confirmed the position in the queue.
    pub(crate) fn tell_queued(&self) -> impl Fn() + Send + Sync + 'static {
        let queued = Arc::clone(&self.queued);
        move || _ = queued.send_replace(true)
    }

    /// Decides that the grant is for one of the callers that wait and are allowed to have it. From now on the work is not given up. If
    /// there is none, returns how many callers wait.
    pub(crate) fn grant(&self, is_allowed: impl Fn(&Caller) -> bool) -> Result<Caller, usize> {
        let mut chosen = Err(0);
        self.callers.send_modify(|callers| {
            let caller = callers.waiting.values().find(|caller| is_allowed(caller)).cloned();
            callers.granted = caller.is_some();
            chosen = caller.ok_or(callers.waiting.len());
        });
        chosen
    }

    /// The grant was given back. All callers wait again.
    pub(crate) fn give_back(&self) {
        self.callers.send_modify(|callers| callers.granted = false);
    }

    /// Completes when a request waits.
    pub(crate) async fn come(&self) {
        // It cannot fail: this is a sender.
        let _ = self.callers.subscribe().wait_for(|callers| !callers.waiting.is_empty()).await;
    }
}

impl Running {
    /// Joins the work on the record, or begins it as `begin` says. `None`: the work is for another request.
    pub(crate) fn join<W>(
        &self,
        record: &Name,
        request: &str,
        caller: &Caller,
        waits: bool,
        begin: impl FnOnce(Requests) -> Answer<W>,
    ) -> Answer<Option<Joined>>
    where
        W: Future<Output = Answer<Grant>> + Send + 'static,
    {
        let mut state = self.0.lock();
        if state.is_withdrawn(record) {
            return Err(withdrawn());
        }
        if let Some(work) = state.work.get(record) {
            return Ok((work.request == request).then(|| work.join(caller)));
        }
        let (tell, queued) = watch::channel(false);
        let requests = Arc::new(watch::Sender::new(Callers::default()));
        let begun = begin(Requests { queued: Arc::new(tell), callers: Arc::clone(&requests) })?;
        let (report, outcome) = watch::channel(None);
        let (withdraw, mut told) = watch::channel(false);
        let work = Work {
            request: request.to_owned(),
            waits,
            outcome,
            queued,
            withdrawn: Arc::new(withdraw),
            requests,
        };
        let joined = work.join(caller);
        state.work.insert(record.clone(), work.clone());
        let listed = Listed { running: self.clone(), record: record.clone() };
        let requests = Arc::clone(&work.requests);
        let work_ends = async move {
            let outcome = tokio::select! {
                outcome = begun => Some(outcome),
                () = abandoned(&requests) => None,
                _ = told.wait_for(|told| *told) => Some(Err(withdrawn())),
            };
            // Before the report, so that the next request asks the engine.
            drop(listed);
            report.send_replace(outcome);
        };
        tokio::spawn(work_ends.in_current_span());
        Ok(Some(joined))
    }

    /// Ends the work on the record, and refuses later requests for it. Returns the work if there was any: it may still take effect until
    /// its outcome is known. `None`: the work is for another request, and goes on.
    pub(crate) fn withdraw(&self, record: &Name, request: &str) -> Option<Option<Work>> {
        let mut state = self.0.lock();
        if state.work.get(record).is_some_and(|work| work.request != request) {
            return None;
        }
        if !state.is_withdrawn(record) {
            state.withdrawn_keys.insert(record.clone());
            state.withdrawn.push_back((Instant::now(), record.clone()));
        }
        let work = state.work.get(record).cloned();
        Some(work.filter(|work| work.withdrawn.send(true).is_ok()))
    }
}

fn withdrawn() -> Problem {
    Problem::new(StatusCode::GONE, "lease-ended", "the request with this Idempotency-Key was withdrawn")
}

impl Work {
    /// Counts a request of this caller.
    fn join(&self, caller: &Caller) -> Joined {
        let (mut is_alone, mut number) = (true, 0);
        self.requests.send_modify(|callers| {
            is_alone = callers.waiting.is_empty();
            number = callers.joined;
            callers.joined += 1;
            callers.timed_out = false;
            callers.waiting.insert(number, caller.clone());
        });
        let request = Counted { requests: Arc::clone(&self.requests), number };
        Joined { work: self.clone(), request, is_alone }
    }

    /// Returns the outcome when it is known. `None`: the work was given up.
    pub(crate) async fn outcome(&self) -> Option<Answer<Grant>> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }

    /// Completes when the engine has confirmed the position in the queue.
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

/// Completes when no request waited for [`LINGER`], or the last one was told that its time is over.
async fn abandoned(requests: &watch::Sender<Callers>) {
    let mut callers = requests.subscribe();
    loop {
        let left = callers.wait_for(|callers| callers.waiting.is_empty()).await;
        if left.is_ok_and(|callers| callers.is_left()) {
            return;
        }
        // A grant that is given back leaves a request that has timed out with nothing.
        let changed = callers.wait_for(|callers| !callers.waiting.is_empty() || callers.is_left());
        if tokio::time::timeout(LINGER, changed).await.is_err() {
            return;
        }
    }
}
