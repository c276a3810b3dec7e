//! One connection, and the claims that it holds.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Backoff, Claim, ClaimId, Moment, Runtime, Token};
use futures_util::future::{Either, select};

use crate::connection_locks::ConnectionLocks;
use crate::connection_locks::server::{Locked, Server, Session};
use crate::connection_locks::task::ConnectionTask;
use crate::database::Answer;
use crate::failure::Failure;

/// How long the server may take to end a statement that waits.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// After what pause a client interrupts a statement again: the server had not read the statement before. Later pauses are longer.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(10);

/// A connection. The server ends it after its idle timeout without a statement.
pub struct Connection<S: Server> {
    pub(super) id: u64,
    server: Arc<S>,
    runtime: Runtime,
    session: S::Session,
    idle: Mutex<Duration>,
    /// The longest idle timeout that a statement has asked for. Its reply may be on its way.
    asked: Mutex<Duration>,
    state: Mutex<State>,
    /// Set when the connection ends.
    pub(super) ended: Arc<AtomicBool>,
}

struct State {
    /// `None`: the connection has ended.
    task: Option<ConnectionTask>,
    claims: HashMap<ClaimId, Arc<Claim>>,
    /// When the last statement was sent.
    sent: Moment,
    /// When the server was last asked what became of the claims that the connection holds.
    looked: Moment,
    /// When the last reply arrived.
    answered: Moment,
}

impl<S: Server> Connection<S> {
    pub(super) fn new(
        server: &Arc<S>,
        runtime: &Runtime,
        (session, task): (S::Session, ConnectionTask),
        idle: Duration,
    ) -> Arc<Connection<S>> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let end = task.end().clone();
        let connection = Arc::new(Connection {
            id: LAST.fetch_add(1, Relaxed) + 1,
            server: Arc::clone(server),
            runtime: runtime.clone(),
            session,
            idle: Mutex::new(idle),
            asked: Mutex::new(idle),
            state: Mutex::new(State {
                task: Some(task),
                claims: HashMap::new(),
                sent: runtime.clock().now(),
                looked: runtime.clock().now(),
                answered: runtime.clock().now(),
            }),
            ended: Arc::default(),
        });
        let weak = Arc::downgrade(&connection);
        end.then(move || {
            if let Some(connection) = weak.upgrade() {
                connection.end();
            }
        });
        connection
    }

    /// Returns the driver's connection.
    pub fn session(&self) -> &S::Session {
        &self.session
    }

    pub(super) fn now(&self) -> Moment {
        self.runtime.clock().now()
    }

    /// Returns whether the connection has ended. The server frees its locks.
    pub fn has_ended(&self) -> bool {
        self.state.lock().task.is_none()
    }

    /// Ends the connection and all claims that it holds. All of them are lost when this returns, also if another thread has begun to end the
    /// connection before.
    pub fn end(&self) {
        let (task, claims) = {
            let mut state = self.state.lock();
            (state.task.take(), state.claims.values().cloned().collect::<Vec<_>>())
        };
        // The holders are told before the server can hear that the connection ends, and before other claims of this client can have their names.
        let why = self.runtime.session_loss();
        claims.iter().for_each(|claim| claim.validity.end(why));
        self.ended.store(true, SeqCst);
        // Removed only now, so that another thread which ends the connection meanwhile tells those that this one has not told yet.
        self.state.lock().claims.clear();
        drop(task);
    }

    /// Returns how long the server waits for a statement before it ends the connection.
    pub(super) fn idle(&self) -> Duration {
        *self.idle.lock()
    }

    /// Returns when a connection that holds nothing is to be pinged, or ended if nobody needs it. While it holds, this is later than now,
    /// because only its holders keep it open, so that the locks of lost claims are freed. A lost claim is held until it is released.
    pub(super) fn unused_until(&self) -> Moment {
        let (now, third) = (self.now(), self.idle() / 3);
        let state = self.state.lock();
        if state.claims.is_empty() { state.sent + third } else { now + third }
    }

    /// Returns when to look next what became of a claim whose lease is not renewed. Other statements and pings do not replace that look, because
    /// they do not ask whether the claim was evicted. `None`: the connection does not hold for the claim, or the claim is lost.
    pub(super) fn next_look(&self, claim: &Claim) -> Option<Moment> {
        let state = self.state.lock();
        let holds = state.claims.contains_key(&claim.id) && claim.is_valid();
        holds.then(|| state.looked + claim.ttl() / 3)
    }

    /// Notes that the server is asked now what became of the claims. The next look comes later also if this one fails.
    pub(super) fn note_look(&self) {
        self.state.lock().looked = self.now();
    }

    /// Adds a claim that was granted by a statement sent at `sent`. Returns whether it is valid.
    pub(super) fn hold(&self, claim: &Arc<Claim>, sent: Moment) -> bool {
        let mut state = self.state.lock();
        if state.task.is_none() {
            return false;
        }
        if state.claims.is_empty() {
            // The grant says what a look would.
            state.looked = sent;
        }
        state.claims.insert(claim.id, Arc::clone(claim));
        drop(state);
        claim.confirm(sent, claim.ttl().min(self.idle()))
    }

    /// Returns whether the connection holds for the claim.
    pub(super) fn holds(&self, claim: &Claim) -> bool {
        self.state.lock().claims.contains_key(&claim.id)
    }

    /// Forgets a claim that is released.
    pub(super) fn forget(&self, claim: &Claim) {
        self.state.lock().claims.remove(&claim.id);
    }

    /// Runs a statement without a time limit, and notes when it was sent. The first poll sends.
    pub(super) async fn send<'a, T, F>(
        &'a self,
        statement: impl FnOnce(&'a S::Session) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + 'a,
    {
        {
            let mut state = self.state.lock();
            if state.task.is_none() {
                return Err(Failure::ended(self.server.name()));
            }
            state.sent = self.now();
        }
        let result = statement(&self.session).await;
        match &result {
            Err(failure) if failure.closed || failure.unusable => self.end(),
            _ => self.state.lock().answered = self.now(),
        }
        result
    }

    /// Runs a statement with the URL's time limit. The first poll sends.
    ///
    /// # Errors
    /// Those of the statement, and a timeout. A connection that has not answered for its idle timeout ends.
    ///
    /// # Cancel safety
    /// May be dropped; the statement takes effect or not.
    pub async fn run<'a, T, F>(&'a self, statement: impl FnOnce(&'a S::Session) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + 'a,
    {
        self.within(self.send(statement)).await
    }

    /// Limits the time of `work`.
    pub(super) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let until = self.now() + self.server.url().timeout;
        match self.runtime.clock().within(until, work).await {
            Some(result) => result,
            None => {
                let failure = Failure::timeout(self.server.name());
                self.end_if_silent();
                Err(failure)
            }
        }
    }

    /// Ends the connection if nothing has been answered for its idle timeout: its leases have expired. A server that hangs keeps it open.
    /// Returns whether it has ended.
    pub(super) fn end_if_silent(&self) -> bool {
        let answered = self.state.lock().answered;
        if self.now() >= answered + self.idle() {
            self.end();
        }
        self.has_ended()
    }

    /// Ends the connection if it holds nothing.
    pub(super) fn end_unless_holding(&self) {
        // A claim that is granted meanwhile is told.
        if self.holds_nothing() {
            self.end();
        }
    }

    /// Returns whether the connection holds for no claim.
    pub(super) fn holds_nothing(&self) -> bool {
        self.state.lock().claims.is_empty()
    }

    /// Returns whether the connection holds nothing, and its last statement has no reply yet. A claim waits for a lock so, for any time.
    pub(super) fn is_waiting(&self) -> bool {
        let state = self.state.lock();
        state.claims.is_empty() && state.answered <= state.sent
    }

    /// Takes a lock if it is free.
    pub(super) async fn try_lock(
        &self,
        claim: &Claim,
        keys: &<S::Session as Session>::Keys,
        reused: bool,
    ) -> Result<Option<Token>, Failure> {
        self.send(|session| session.try_lock(claim, keys, reused)).await
    }

    /// Releases a lock.
    pub(super) async fn unlock(
        &self,
        locked: &Locked<<S::Session as Session>::Keys>,
    ) -> Result<bool, Failure> {
        self.send(|session| session.unlock(locked)).await
    }

    /// Releases what a statement may have been granted before it failed: an error does not release a lock. `is_shared`: another claim
    /// has the name on this connection, and only the end of the connection is certain to undo one of them.
    pub(super) async fn undo(&self, locked: &Locked<<S::Session as Session>::Keys>, is_shared: bool) {
        if is_shared || self.within(self.unlock(locked)).await.is_err() {
            self.end();
        }
    }

    /// Interrupts the statement that waits, and releases what it may have been granted meanwhile. Ends the connection if that fails.
    pub(super) async fn cancel(
        &self,
        locks: &ConnectionLocks<S>,
        keys: &<S::Session as Session>::Keys,
        ttl: Duration,
        waiting: impl Future<Output = Result<Token, Failure>>,
    ) {
        let clock = self.runtime.clock();
        let cancelled = async {
            let mut waiting = pin!(waiting);
            let mut backoff = Backoff::new(INTERRUPT_AGAIN, INTERRUPT_TIMEOUT);
            let ended = loop {
                S::interrupt(locks, self, ttl).await?;
                match select(waiting.as_mut(), pin!(backoff.sleep(clock))).await {
                    Either::Left((ended, _)) => break ended,
                    Either::Right(_) => {}
                }
            };
            match ended {
                // A lock can be granted to a statement that fails.
                Err(failure) if failure.interrupted => self.send(|session| session.clean(keys)).await,
                // It was granted at the last moment. An interruption may still hit a later statement.
                Ok(_) => Err(Failure::ended(self.server.name())),
                Err(failure) => Err(failure),
            }
        };
        if !matches!(clock.within(clock.now() + INTERRUPT_TIMEOUT, cancelled).await, Some(Ok(()))) {
            self.end();
        }
    }

    /// Sends a statement so that the idle timeout starts again. It becomes that of `ttl` if that is longer.
    pub(super) async fn ping(&self, ttl: Duration) -> Result<(), Failure> {
        let (mut idle, mut sent) = (S::idle_for(ttl), None::<Answer<'_, ()>>);
        poll_fn(|cx| {
            if let Some(sent) = &mut sent {
                return sent.as_mut().poll(cx);
            }
            // Kept until the statement is sent: one that is sent later never asks for less.
            let mut asked = self.asked.lock();
            *asked = idle.max(*asked);
            idle = *asked;
            let longest = idle;
            let statement = sent.insert(Box::pin(self.run(move |session| session.set_idle(longest))));
            statement.as_mut().poll(cx)
        })
        .await?;
        let asked = *self.asked.lock();
        let mut known = self.idle.lock();
        *known = idle.max(*known).min(asked);
        Ok(())
    }

    /// Makes the idle timeout that of `ttl`.
    pub(super) async fn set_idle(&self, ttl: Duration) -> Result<(), Failure> {
        let idle = S::idle_for(ttl);
        if self.idle() != idle {
            self.run(|session| session.set_idle(idle)).await?;
            self.note_idle(idle);
        }
        Ok(())
    }

    /// Confirms a lock that was waited for. Its idle timeout becomes that of the claim.
    pub(super) async fn confirm(
        &self,
        claim: &Claim,
        keys: &<S::Session as Session>::Keys,
        token: Token,
        ttl: Duration,
    ) -> Result<Token, Failure> {
        let idle = S::idle_for(ttl);
        // It replaces a look, because it finds as well whether the server still accepts writes, and nobody has evicted the claim yet.
        self.note_look();
        let token = self.run(|session| session.confirm(claim, keys, token, idle)).await?;
        self.note_idle(idle);
        Ok(token)
    }

    /// Notes the idle timeout of a connection that holds nothing yet.
    fn note_idle(&self, idle: Duration) {
        *self.asked.lock() = idle;
        *self.idle.lock() = idle;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Wake, Waker};
    use std::thread;

    use super::*;
    use crate::connection_locks::silent;

    /// The time limit for events that should happen at once.
    const SOON: Duration = Duration::from_secs(30);

    /// Stops the thread that wakes it first until the other one has gone on.
    struct Stops {
        telling: Mutex<Option<mpsc::Sender<()>>>,
        noted: Mutex<mpsc::Receiver<()>>,
    }

    impl Wake for Stops {
        fn wake(self: Arc<Self>) {
            let Some(telling) = self.telling.lock().take() else { return };
            telling.send(()).expect("the test waits");
            self.noted.lock().recv_timeout(SOON).expect("the end is noted");
        }
    }

    /// A statement of a claim and the driver's task can find the end at the same time. A client connects to the next server as soon as the end
    /// is noted.
    #[test]
    fn the_end_is_noted_after_all_holders_are_told_whoever_tells_them() {
        let (connection, end, runtime) = silent::open();
        let claims = [1, 2].map(|id| silent::claim(id, &runtime));
        let (telling, begun) = mpsc::channel();
        let (noted, receiver) = mpsc::channel();
        let stops = Stops { telling: Mutex::new(Some(telling)), noted: Mutex::new(receiver) };
        let waker = Waker::from(Arc::new(stops));
        let _watches = claims.each_ref().map(|claim| {
            assert!(connection.hold(claim, connection.now()));
            let mut watch = claim.validity.watch(runtime.clock());
            watch.set(&waker);
            watch
        });
        thread::scope(|scope| {
            scope.spawn(|| connection.end());
            begun.recv_timeout(SOON).expect("a holder is being told");
            assert!(!connection.ended.load(SeqCst), "another claim of the client could have the name");
            end.note();
            let told = claims.each_ref().map(|claim| claim.validity.ended().is_some());
            noted.send(()).expect("the thread waits");
            assert!(end.has_told());
            assert_eq!(told, [true; 2], "a claim at the next server would hold the same lock");
        });
    }
}
