//! The engines of the layer, and the probes of the primary.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::breaker::{Breaker, Phase};
use super::primary::Primary;
use fencepost_core::sync::Mutex;
use fencepost_core::{
    Backend, Clock, Degraded, Error, ErrorKind, Moment, Result, Runtime, Token, degraded_client_gone,
    engine_away, engine_back,
};

/// One of the two engines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    Primary,
    /// The fallback, or the client's own memory.
    Second,
}

/// The part that grants while the primary is away.
pub(super) enum Stand {
    /// This engine.
    Fallback(Arc<dyn Backend>),
    /// This engine in the client's memory.
    Local(Arc<dyn Backend>),
    /// Nothing: every claim is granted.
    Open,
}

/// Which engines have to grant a claim, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) roles: &'static [Role],
    pub(super) degraded: Option<Degraded>,
    /// A grant of the fallback alone counts as sent at this moment at the latest.
    pub(super) sent_by: Moment,
    /// Nobody grants until then, or a change.
    pub(super) wait: Option<Moment>,
}

/// The engines, and what is known of the primary.
pub(super) struct Engines {
    pub(super) primary: Primary,
    pub(super) stand: Stand,
    pub(super) clock: Clock,
    pub(super) interval: Duration,
    policy: &'static str,
    breaker: Mutex<Breaker>,
    /// Counts the changes of the breaker.
    changes: watch::Sender<u64>,
    /// Wakes the task that probes.
    hurry: Arc<Notify>,
    /// How far the primary's clock is from ours, in microseconds, as its tokens show.
    offset: AtomicI64,
    /// The last token of a grant that no engine made.
    own_token: AtomicU64,
}

impl Engines {
    pub(super) fn new(
        primary: Primary,
        stand: Stand,
        clock: Clock,
        policy: &'static str,
        (settling, interval): (Duration, Duration),
    ) -> Engines {
        let mut breaker = Breaker::new(settling, interval);
        if primary.get().is_none() {
            breaker.begin_away(clock.now());
            engine_away(primary.name(), policy);
        }
        Engines {
            primary,
            stand,
            clock,
            interval,
            policy,
            breaker: Mutex::new(breaker),
            changes: watch::Sender::new(0),
            hurry: Arc::default(),
            offset: AtomicI64::new(0),
            own_token: AtomicU64::new(0),
        }
    }

    /// The engine of this role. `None`: there is none, or it was not reached yet.
    pub(super) fn get(&self, role: Role) -> Option<&Arc<dyn Backend>> {
        match (role, &self.stand) {
            (Role::Primary, _) => self.primary.get(),
            (Role::Second, Stand::Fallback(engine) | Stand::Local(engine)) => Some(engine),
            (Role::Second, Stand::Open) => None,
        }
    }

    pub(super) fn policy(&self) -> &'static str {
        self.policy
    }

    pub(super) fn has_fallback(&self) -> bool {
        matches!(self.stand, Stand::Fallback(_))
    }

    /// Returns which engines have to grant a claim now.
    pub(super) fn plan(&self) -> Plan {
        const BOTH: &[Role] = &[Role::Second, Role::Primary];
        let of = |roles, degraded| Plan { roles, degraded, sent_by: Moment::NEVER, wait: None };
        let breaker = self.breaker.lock();
        match &self.stand {
            Stand::Open if breaker.is_open() => of(&[], Some(Degraded::Unprotected)),
            Stand::Open => of(&[Role::Primary], None),
            Stand::Local(_) if breaker.is_open() => of(&[Role::Second], Some(Degraded::LocalOnly)),
            Stand::Local(_) => of(BOTH, None),
            Stand::Fallback(_) => match breaker.phase(self.clock.now()) {
                Phase::Primary => of(&[Role::Primary], None),
                Phase::Both => of(BOTH, None),
                Phase::Nobody { until } => {
                    Plan { wait: Some(until), ..of(&[Role::Second], Some(Degraded::Fallback)) }
                }
                Phase::Fallback { sent_by } => {
                    Plan { sent_by, ..of(&[Role::Second], Some(Degraded::Fallback)) }
                }
            },
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.lock().is_open()
    }

    /// When the last probe began that the primary answered, if it answers.
    pub(super) fn last_answer(&self) -> Option<Moment> {
        self.breaker.lock().last_answer()
    }

    /// Tells of each change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until then, or for a change.
    ///
    /// # Errors
    /// The client is closed. Its clock has stopped, and waits no more.
    pub(super) async fn wait(&self, until: Moment, changes: &mut watch::Receiver<u64>) -> Result<()> {
        self.clock.within(until, changes.changed()).await;
        match self.clock.is_stopped() {
            true => Err(Error::new(ErrorKind::Closed, Error::CLOSED)),
            false => Ok(()),
        }
    }

    /// Waits until the plan may be another one.
    pub(super) async fn plan_change(&self, changes: &mut watch::Receiver<u64>) {
        let alone = self.breaker.lock().alone_from();
        let until = if self.has_fallback() && alone > self.clock.now() { alone } else { Moment::NEVER };
        let changed = self.clock.within(until, changes.changed()).await;
        if changed.is_some_and(|changed| changed.is_err()) || self.clock.is_stopped() {
            std::future::pending().await
        }
    }

    /// Completes once the primary alone decides.
    pub(super) async fn primary_alone(&self) {
        let mut changes = self.changes();
        while self.plan().roles != [Role::Primary] {
            // The plan also waits for a probe that is under way.
            let until = self.clock.now() + self.interval / 2;
            self.clock.within(until, self.plan_change(&mut changes)).await;
            if self.clock.is_stopped() {
                std::future::pending().await
            }
        }
    }

    /// A request to the primary failed with `error`.
    fn request_failed(&self, error: &Error) {
        if error.is_unreachable() {
            let changed = self.breaker.lock().request_failed();
            self.tell(changed);
            self.hurry.notify_one();
        }
    }

    /// A request to the primary takes long.
    fn suspect(&self) {
        self.breaker.lock().suspect();
        self.hurry.notify_one();
    }

    /// Runs a request to the engine of this role. One to the primary that fails or takes long leads to a probe.
    pub(super) async fn watched<T>(&self, role: Role, request: impl Future<Output = Result<T>>) -> Result<T> {
        if role == Role::Second {
            return request.await;
        }
        let mut request = std::pin::pin!(request);
        let long = self.clock.now() + self.interval / 2;
        let answer = match self.clock.within(long, request.as_mut()).await {
            Some(answer) => answer,
            None => {
                self.suspect();
                request.await
            }
        };
        answer.inspect_err(|error| self.request_failed(error))
    }

    fn tell(&self, changed: bool) {
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// The error of a claim that does not wait, while nobody grants.
    pub(super) fn nobody(&self, until: Moment) -> Error {
        let left = until.since(self.clock.now());
        let left = Duration::from_secs(left.as_nanos().div_ceil(1_000_000_000) as u64);
        let message = format!(
            "the engine is away, and its fallback grants in {left:?} at the earliest, when old leases have ended; wait or try again"
        );
        Error::new(ErrorKind::Unreachable, message).on(self.primary.name())
    }

    /// Learns how far the clock of the primary is, by a token that it has just made.
    pub(super) fn learn_offset(&self, token: Token) {
        if self.primary.capabilities().is_some_and(|has| has.clock_tokens) {
            let offset = token.get().cast_signed() - self.clock.wall_micros().cast_signed();
            self.offset.store(offset, Ordering::Relaxed);
        }
    }

    /// Makes the token of a grant that no engine made. Zero where the primary's tokens are not made of a clock: what checks tokens
    /// refuses that, and a greater one would keep out the holders to come.
    pub(super) fn own_token(&self) -> Token {
        if !self.primary.capabilities().is_some_and(|has| has.clock_tokens) {
            return Token::default();
        }
        let now = self.clock.wall_micros().saturating_add_signed(self.offset.load(Ordering::Relaxed));
        let next = |last: u64| Some(now.max(last + 1));
        let last =
            self.own_token.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        Token::new(now.max(last + 1))
    }

    async fn probe(&self) {
        let begin = self.clock.now();
        self.breaker.lock().probe_begins(begin);
        let answer = self.clock.within(begin + self.interval / 2, self.primary.probe()).await;
        let now = self.clock.now();
        answer.iter().for_each(|answer| self.primary.note_answer(answer));
        // An engine that refuses has answered.
        let answered = match &answer {
            Some(Ok(())) => true,
            Some(Err(error)) => !error.is_unreachable(),
            // An attempt to open it lasts over several probes. One that has refused goes on to refuse until an attempt has another end.
            None => self.primary.refuses(),
        };
        let (changed, opened, open) = {
            let mut breaker = self.breaker.lock();
            let before = breaker.is_open();
            let changed = if answered { breaker.answered(begin, now) } else { breaker.failed(begin, now) };
            (changed, before != breaker.is_open(), breaker.is_open())
        };
        match (opened, open) {
            (true, true) => engine_away(self.primary.name(), self.policy),
            (true, false) => engine_back(self.primary.name(), self.policy),
            (false, _) => {}
        }
        self.tell(changed);
    }

    /// Nobody uses the engines any more.
    pub(super) fn layer_is_gone(&self) {
        if self.is_open() {
            degraded_client_gone(self.primary.name(), self.policy);
        }
    }

    /// Probes the primary as long as the layer lives.
    pub(super) fn start_probes(self: &Arc<Engines>, runtime: &Runtime) {
        let (engines, clock) = (Arc::downgrade(self), self.clock.clone());
        let hurry = Arc::clone(&self.hurry);
        runtime.spawn(async move { probe_all(engines, &clock, &hurry).await });
    }
}

async fn probe_all(engines: Weak<Engines>, clock: &Clock, hurry: &Notify) {
    loop {
        let Some(engines) = engines.upgrade().filter(|_| !clock.is_stopped()) else { return };
        // One that refuses to be opened answers, and only a probe opens it.
        let steady = engines.has_fallback() || engines.primary.get().is_none();
        let due = engines.breaker.lock().next_probe(steady);
        if due <= clock.now() {
            engines.probe().await;
        } else {
            drop(engines);
            clock.within(due, hurry.notified()).await;
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.hurry.notify_one();
    }
}
