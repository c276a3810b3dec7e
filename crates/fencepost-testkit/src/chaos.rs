//! A layer that loses, delays and repeats the requests to an engine, as a network does, by a seed.

use crate::sim::Rng;
use fencepost_core::sync::Mutex;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Clock, Conversion, Entry, Error, ErrorKind, How, Leave, Left,
    Operator, Place, Reply, Request, Session,
};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// The number of requests, of 1000, that each fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Odds {
    /// The request is lost. Its sender does not know.
    pub lost_request: u32,
    /// The request takes effect and its reply is lost.
    pub lost_reply: u32,
    /// The request is sent twice, the second time after a delay.
    pub repeated: u32,
    /// The request arrives late.
    pub late_request: u32,
    /// The reply arrives late.
    pub late_reply: u32,
    /// A round of renewal reaches only some of its claims.
    pub torn_renewal: u32,
    /// A waiter is woken without a reason.
    pub idle_wake: u32,
    /// The longest delay.
    pub delay: Duration,
}

impl Odds {
    /// No faults: the layer passes everything on.
    pub const NONE: Odds = Odds {
        lost_request: 0,
        lost_reply: 0,
        repeated: 0,
        late_request: 0,
        late_reply: 0,
        torn_renewal: 0,
        idle_wake: 0,
        delay: Duration::ZERO,
    };

    /// A bad network.
    pub const BAD: Odds = Odds {
        lost_request: 20,
        lost_reply: 30,
        repeated: 30,
        late_request: 60,
        late_reply: 60,
        torn_renewal: 50,
        idle_wake: 30,
        delay: Duration::from_millis(400),
    };
}

/// The layer that makes the faults.
pub struct Chaos {
    inner: Arc<dyn Backend>,
    plan: Arc<Dice>,
}

struct Dice {
    clock: Clock,
    rng: Mutex<Rng>,
    odds: Odds,
    faults: AtomicU64,
    /// No request arrives.
    cut: AtomicBool,
}

/// The fault of one request.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    before: Duration,
    lost: bool,
    repeated: Option<Duration>,
    after: Duration,
    unanswered: bool,
}

impl Chaos {
    /// Makes faults in front of `inner`. The seed determines which.
    pub fn new(inner: Arc<dyn Backend>, clock: Clock, seed: u64, odds: Odds) -> Chaos {
        let dice = Dice {
            clock,
            rng: Mutex::new(Rng::new(seed)),
            odds,
            faults: AtomicU64::new(0),
            cut: AtomicBool::new(false),
        };
        Chaos { inner, plan: Arc::new(dice) }
    }

    /// Returns the number of requests that had a fault.
    pub fn faults(&self) -> u64 {
        self.plan.faults.load(Ordering::Relaxed)
    }

    /// Loses every request from now on, or stops doing so.
    pub fn cut(&self, cut: bool) {
        self.plan.cut.store(cut, Ordering::SeqCst);
    }
}

impl Dice {
    /// Draws the fault of the next request; `None` means that it has none.
    fn roll(&self) -> Option<Fate> {
        let odds = &self.odds;
        if self.cut.load(Ordering::SeqCst) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            return Some(Fate { lost: true, ..Fate::default() });
        }
        if *odds == Odds::NONE {
            return None;
        }
        let mut rng = self.rng.lock();
        let fate = Fate {
            before: late(&mut rng, odds.late_request, odds.delay),
            lost: rng.chance(odds.lost_request),
            repeated: rng.chance(odds.repeated).then(|| late(&mut rng, 500, odds.delay)),
            after: late(&mut rng, odds.late_reply, odds.delay),
            unanswered: rng.chance(odds.lost_reply),
        };
        let calm = fate.before.is_zero() && fate.after.is_zero() && fate.repeated.is_none();
        if calm && !fate.lost && !fate.unanswered {
            return None;
        }
        self.faults.fetch_add(1, Ordering::Relaxed);
        Some(fate)
    }

    fn chance(&self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.lock().chance(per_mille)
    }

    async fn sleep(&self, time: Duration) {
        if !time.is_zero() {
            self.clock.sleep_until(self.clock.now() + time).await;
        }
    }
}

fn late(rng: &mut Rng, per_mille: u32, longest: Duration) -> Duration {
    if rng.chance(per_mille) {
        Duration::from_nanos(rng.below(longest.as_nanos() as u64))
    } else {
        Duration::ZERO
    }
}

/// Returns the error of a request that was lost, or whose reply was lost.
fn silence() -> Error {
    Error::new(ErrorKind::Unreachable, "no answer in time; try again").unknown()
}

/// Sends a request with its fault. This is a macro because each `$send` borrows the entry again.
macro_rules! troubled {
    ($plan:expr, $again:expr, $send:expr, $coming:path) => {{
        match $plan.roll() {
            None => $send,
            Some(fate) => {
                let plan = $plan.clone();
                $coming(async move {
                    plan.sleep(fate.before).await;
                    if fate.lost {
                        plan.sleep(fate.after).await;
                        return Err(silence());
                    }
                    let mut answer = $send.await;
                    if let Some(pause) = fate.repeated.filter(|_| $again(&answer)) {
                        plan.sleep(pause).await;
                        answer = $send.await;
                    }
                    plan.sleep(fate.after).await;
                    if fate.unanswered { Err(silence()) } else { answer }
                })
            }
        }
    }};
}

impl Backend for Chaos {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let inner = Arc::clone(&self.inner).entry(Arc::clone(&claim), how);
        Entry::new(claim, how, Troubled { inner, plan: self.plan.clone() })
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }

    fn reach(&self) -> Reply<'_, Result<(), Error>> {
        if self.plan.cut.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::Unreachable, "the request was lost");
            return Reply::ready(Err(error.transient(true)));
        }
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}

struct Troubled {
    inner: Entry,
    plan: Arc<Dice>,
}

impl Place for Troubled {
    fn ask(&mut self) -> Request<'_, Attempt> {
        // A network repeats requests. It does not repeat a request that the client knows to be over.
        let again = |answer: &Result<Attempt, Error>| !matches!(answer, Ok(Attempt::Gone) | Err(_));
        troubled!(self.plan, again, self.inner.ask(), Request::drops)
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.plan.chance(self.plan.odds.idle_wake) {
            return Poll::Ready(());
        }
        self.inner.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        troubled!(self.plan, Result::is_ok, self.inner.leave(how, may_have_left), Request::drops)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        let inner = self.inner.session(holds)?;
        Some(Arc::new(TroubledSession { inner, plan: self.plan.clone() }))
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        troubled!(self.plan, Result::is_ok, self.inner.convert(to), Request::drops)
    }

    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
    }

    fn native(&mut self) -> Option<&mut (dyn Any + Send)> {
        self.inner.native()
    }
}

struct TroubledSession {
    inner: Arc<dyn Session>,
    plan: Arc<Dice>,
}

impl Session for TroubledSession {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<(), Error>> {
        if self.plan.chance(self.plan.odds.torn_renewal) {
            let some = &due[..due.len() / 2];
            return Reply::coming(async move {
                if !some.is_empty() {
                    self.inner.renew(some).await?;
                }
                Err(silence())
            });
        }
        troubled!(self.plan, Result::is_ok, self.inner.renew(due), Reply::coming)
    }
}
