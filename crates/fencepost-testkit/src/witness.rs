//! A layer that records the positions in the queue that the engine confirmed.
//!
//! A caller of `lock()` sees only its grant. Fairness depends on which claims were queued at which time, and
//! only the engine's answers show that. This layer is between core and the engine. It records the answers for
//! the claim of the call, see [`on_behalf`].

use crate::history::{Key, Recorder, What};
use fencepost_core::sync::Mutex;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, ClaimId, Conversion, Entry, Error, How, Leave, Left, Moment,
    Operator, Place, Reply, Request, Session,
};
use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

thread_local! {
    /// The claim whose future is being polled on this thread.
    static CURRENT: Cell<Option<Key>> = const { Cell::new(None) };
}

/// Runs `work`, and makes each [`Witness`] record its requests for `key`.
pub async fn on_behalf<F: Future>(key: Key, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        let before = CURRENT.replace(Some(key));
        let polled = work.as_mut().poll(cx);
        CURRENT.set(before);
        polled
    })
    .await
}

/// The layer that records.
pub struct Witness {
    inner: Arc<dyn Backend>,
    seen: Arc<Seen>,
}

struct Seen {
    recorder: Recorder,
    /// The key in the history of each claim at the engine, while its entry exists.
    keys: Mutex<HashMap<ClaimId, Key>>,
}

impl Witness {
    /// Records the answers of `inner`.
    pub fn new(inner: Arc<dyn Backend>, recorder: Recorder) -> Witness {
        Witness { inner, seen: Arc::new(Seen { recorder, keys: Mutex::default() }) }
    }
}

impl Seen {
    fn keys(&self) -> MutexGuard<'_, HashMap<ClaimId, Key>> {
        self.keys.lock()
    }

    /// Records that a request sent at `sent` confirmed the position. A position can belong to a session that was renewed earlier: the engine
    /// then keeps it until a lease after that renewal. The next renewal is due a third of a lease after the last one.
    fn waits(&self, key: Key, claim: &Claim, sent: Moment) {
        let ttl = claim.ttl();
        let until = (sent + ttl).min(claim.validity.due() + ttl * 2 / 3).as_nanos();
        self.recorder.record(key, What::Waiting { sent: sent.as_nanos(), until });
    }
}

impl Backend for Witness {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let inner = Arc::clone(&self.inner).entry(claim.clone(), how);
        let key = CURRENT.get();
        if let Some(key) = key {
            self.seen.keys().insert(claim.id, key);
        }
        let place = Witnessed { inner, claim: claim.clone(), key, seen: self.seen.clone() };
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }

    fn reach(&self) -> Reply<'_, Result<(), Error>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}

struct Witnessed {
    inner: Entry,
    claim: Arc<Claim>,
    key: Option<Key>,
    seen: Arc<Seen>,
}

/// The reply, whose answer is looked at when it is there.
fn looked_at<'a, T: Send + 'a>(reply: Reply<'a, T>, look: impl Fn(&T) + Send + 'a) -> Reply<'a, T> {
    match reply {
        Reply::Ready(answer) => {
            answer.iter().for_each(look);
            Reply::Ready(answer)
        }
        Reply::Coming(future) => Reply::coming(async move {
            let answer = future.await;
            look(&answer);
            answer
        }),
    }
}

impl Place for Witnessed {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let Some(key) = self.key else { return self.inner.ask() };
        let (seen, claim) = (&self.seen, &self.claim);
        let sent = claim.runtime.clock().now();
        let answer = self.inner.attempt();
        let look = move |answer: &Result<Attempt, Error>| match answer {
            Ok(Attempt::Blocked { .. }) if claim.waits => seen.waits(key, claim, sent),
            // A granted claim is no longer queued. If its grant has expired by now, core queues it again
            // behind the others.
            Ok(Attempt::Gone | Attempt::Granted(_)) => seen.recorder.record(key, What::Unseated),
            _ => {}
        };
        looked_at(answer, look).into()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.inner.leave(how, may_have_left)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let inner = self.inner.session(holds)?;
        Some(Arc::new(WitnessedSession { inner, seen: self.seen.clone() }))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        let Conversion::Exclusive { join } = to else { return self.inner.convert(to) };
        let (seen, key) = (&self.seen, self.key);
        let look = move |answer: &Result<Attempt, Error>| {
            if let (Ok(Attempt::Blocked { .. }), Some(key), true) = (answer, key, join) {
                seen.recorder.record(key, What::Marked);
            }
        };
        looked_at(self.inner.upgrade(join), look).into()
    }

    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.inner.native()
    }
}

impl Drop for Witnessed {
    fn drop(&mut self) {
        self.seen.keys().remove(&self.claim.id);
    }
}

struct WitnessedSession {
    inner: Arc<dyn Session>,
    seen: Arc<Seen>,
}

impl Session for WitnessedSession {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<(), Error>> {
        let Some(sent) = due.first().map(|claim| claim.runtime.clock().now()) else {
            return self.inner.renew(due);
        };
        let answer = self.inner.renew(due);
        let look = move |answer: &Result<(), Error>| {
            for claim in due.iter().filter(|claim| answer.is_ok() && claim.validity.ended().is_none()) {
                let key = self.seen.keys().get(&claim.id).copied();
                if let Some(key) = key {
                    self.seen.waits(key, claim, sent);
                }
            }
        };
        looked_at(answer, look)
    }
}
