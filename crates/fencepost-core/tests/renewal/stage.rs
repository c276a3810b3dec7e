//! An engine in memory whose answers a test writes, on a clock that only the test moves.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, ClientBuilder, Clock, Conversion, Entry, Error, ErrorKind,
    Eviction, How, Info, Leave, Left, Listing, Loss, Memory, Moment, Name, Operator, Page, Place,
    RecordStore, Reply, Request, Result, Runtime, Session, Token,
};

use crate::manual_time;

/// How the engine answers one request. Without one of these it answers as memory does.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    AsMemory,
    Fails,
    /// It does what it is asked, and the process is paused for so long before it reads the answer.
    ThenPause(Duration),
    /// The process is paused for so long before the engine is asked.
    PauseThen(Duration),
    /// There is no answer.
    Never,
    /// It does after so long what it is asked.
    After(Duration),
    /// It fails after so long.
    FailsAfter(Duration),
    /// It knows none of the claims any more.
    Forgets,
    /// It fails, and will fail again.
    Refuses,
}

#[derive(Clone)]
pub(crate) struct Engine {
    memory: Arc<Memory>,
    clock: Clock,
    attempts: Arc<Mutex<VecDeque<Answer>>>,
    renewals: Arc<Mutex<VecDeque<Answer>>>,
    /// The length of the lease that each request for a renewal asked for.
    asked: Arc<Mutex<Vec<Duration>>>,
    releases: Arc<Mutex<VecDeque<Answer>>>,
    /// How many requests for a release or a withdrawal there were.
    removals: Arc<AtomicUsize>,
    capabilities: Arc<Mutex<Capabilities>>,
    /// When attempts were sent.
    attempted: Arc<Mutex<Vec<Moment>>>,
    /// How long a position in the queue lasts, if not as long as the lease.
    place: Arc<Mutex<Option<Duration>>>,
    /// Whether looks at the claims fail.
    blind: Arc<AtomicBool>,
    /// When somebody looked at the claims.
    looks: Arc<Mutex<Vec<Moment>>>,
}

impl Engine {
    fn stands(&self, claim: &Claim) {
        let place = self.place.lock().unwrap().unwrap_or(claim.ttl());
        claim.validity.waiting(self.clock.now(), place);
    }

    fn note_attempt(&self) {
        self.attempted.lock().unwrap().push(self.clock.now());
    }

    fn pause(&self, by: Duration) {
        self.clock.advance_to(self.clock.now() + by);
    }
}

struct EnginePlace {
    entry: Entry,
    claim: Arc<Claim>,
    engine: Engine,
}

impl Backend for Engine {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.lock().unwrap().clone()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return entry;
        }
        Entry::new(Arc::clone(&claim), how, EnginePlace { entry, claim, engine: (*self).clone() })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Engine {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.looks.lock().unwrap().push(self.clock.now());
        if self.blind.load(Ordering::Relaxed) {
            return Reply::ready(Err(failure()));
        }
        self.memory.operator().inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.operator().evict(name, token, how)
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        self.memory.operator().records(runtime)
    }
}

fn failure() -> Error {
    Error::new(ErrorKind::Unreachable, "the engine is away")
}

impl Place for EnginePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        let answer = self.engine.attempts.lock().unwrap().pop_front().unwrap_or(Answer::AsMemory);
        match answer {
            // A request whose answer comes later is sent with the first poll.
            Answer::Never => {
                return Request::drops(async {
                    self.engine.note_attempt();
                    pending().await
                });
            }
            Answer::After(time) => {
                return Request::drops(async move {
                    self.engine.note_attempt();
                    self.engine.clock.sleep_until(self.engine.clock.now() + time).await;
                    let attempt = self.entry.ask().await;
                    if let Ok(Attempt::Blocked { .. }) = attempt {
                        self.engine.stands(&self.claim);
                    }
                    attempt
                });
            }
            _ => self.engine.note_attempt(),
        }
        if let Answer::Fails = answer {
            return Request::ready(Err(failure()));
        }
        let attempt = self.entry.ask();
        if let Request::Ready(Ok(Attempt::Blocked { .. })) = attempt {
            self.engine.stands(&self.claim);
        }
        if let Answer::ThenPause(pause) = answer {
            self.engine.pause(pause);
        }
        attempt
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    /// A position in the queue is renewed here, too.
    fn session(&self, _holds: bool) -> Option<Arc<dyn Session>> {
        Some(Arc::new(self.engine.clone()))
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if how == Leave::Detach {
            return self.entry.leave(how, may_have_left);
        }
        self.engine.removals.fetch_add(1, Ordering::Relaxed);
        let answer = self.engine.releases.lock().unwrap().pop_front().unwrap_or(Answer::AsMemory);
        match answer {
            Answer::Fails => Request::ready(Err(failure())),
            Answer::Refuses => Request::ready(Err(Error::new(ErrorKind::Denied, "the engine refuses"))),
            Answer::After(time) => Request::drops(async move {
                self.engine.clock.sleep_until(self.engine.clock.now() + time).await;
                self.entry.leave(Leave::Withdraw, may_have_left).await
            }),
            _ => self.entry.leave(Leave::Withdraw, may_have_left),
        }
    }

    /// The answer comes later, as that of a server.
    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        let Conversion::Exclusive { .. } = to else { return self.entry.convert(to) };
        Request::drops(async move {
            tokio::task::yield_now().await;
            self.entry.convert(to).await
        })
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

impl Session for Engine {
    fn id(&self) -> u64 {
        Session::id(&*self.memory)
    }

    fn renew<'a>(&'a self, due: &'a [Arc<Claim>]) -> Reply<'a, Result<()>> {
        self.asked.lock().unwrap().extend(due.iter().map(|claim| claim.ttl()));
        let answer = self.renewals.lock().unwrap().pop_front().unwrap_or(Answer::AsMemory);
        Reply::coming(async move {
            match answer {
                Answer::Fails => return Err(failure()),
                Answer::After(time) => self.clock.sleep_until(self.clock.now() + time).await,
                Answer::FailsAfter(time) => {
                    self.clock.sleep_until(self.clock.now() + time).await;
                    return Err(failure());
                }
                Answer::Forgets => {
                    due.iter().for_each(|claim| claim.validity.end(Loss::Deleted));
                    return Ok(());
                }
                Answer::Never => pending().await,
                Answer::PauseThen(pause) => self.pause(pause),
                Answer::AsMemory | Answer::ThenPause(_) | Answer::Refuses => {}
            }
            for claim in due.iter().filter(|claim| !claim.validity.is_confirmed()) {
                self.stands(claim);
            }
            let held: Vec<_> = due.iter().filter(|claim| claim.validity.is_confirmed()).cloned().collect();
            self.memory.renew(&held).await
        })
    }
}

pub(crate) struct Stage {
    pub(crate) clock: Clock,
    engine: Engine,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let memory = Memory::new();
        let clock = Clock::manual();
        let (attempts, renewals, asked) = Default::default();
        let (releases, removals, attempted, place, blind, looks) = Default::default();
        let capabilities = Arc::new(Mutex::new(memory.capabilities()));
        let engine = Engine {
            memory,
            clock: clock.clone(),
            attempts,
            renewals,
            asked,
            releases,
            removals,
            capabilities,
            attempted,
            place,
            blind,
            looks,
        };
        Stage { clock, engine }
    }

    pub(crate) fn client(&self, builder: ClientBuilder) -> Client {
        let runtime = manual_time::runtime(1, &self.clock);
        let engine = Arc::new(self.engine.clone());
        builder.runtime(runtime).open(|_| Ok(engine)).unwrap()
    }

    /// The answers to the next attempts.
    pub(crate) fn attempts(&self, answers: impl IntoIterator<Item = Answer>) {
        self.engine.attempts.lock().unwrap().extend(answers);
    }

    /// The answers to the next renewals.
    pub(crate) fn renewals(&self, answers: impl IntoIterator<Item = Answer>) {
        self.engine.renewals.lock().unwrap().extend(answers);
    }

    /// The answers to the next releases.
    pub(crate) fn releases(&self, answers: impl IntoIterator<Item = Answer>) {
        self.engine.releases.lock().unwrap().extend(answers);
    }

    /// Returns how many requests for a release or a withdrawal there were.
    pub(crate) fn removals(&self) -> usize {
        self.engine.removals.load(Ordering::Relaxed)
    }

    /// Sets how long a position in the queue lasts.
    pub(crate) fn place(&self, length: Duration) {
        *self.engine.place.lock().unwrap() = Some(length);
    }

    /// Says whether the engines of later clients can look at claims, and evict holders.
    pub(crate) fn can(&self, inspect: bool, evict: bool) {
        let mut capabilities = self.engine.capabilities.lock().unwrap();
        (capabilities.inspect, capabilities.evict) = (inspect, evict);
    }

    pub(crate) fn has_no_permits(&self) {
        self.engine.capabilities.lock().unwrap().permits = false;
    }

    /// Returns when attempts were sent, in seconds since `start`.
    pub(crate) fn attempted(&self, start: Moment) -> Vec<u64> {
        self.engine.attempted.lock().unwrap().iter().map(|attempt| attempt.since(start).as_secs()).collect()
    }

    /// Makes looks at the claims fail, or not.
    pub(crate) fn blind(&self, blind: bool) {
        self.engine.blind.store(blind, Ordering::Relaxed);
    }

    /// Returns when somebody looked at the claims, in seconds since `start`.
    pub(crate) fn looks(&self, start: Moment) -> Vec<u64> {
        self.engine.looks.lock().unwrap().iter().map(|look| look.since(start).as_secs()).collect()
    }

    /// The lengths of the leases that renewals have asked for.
    pub(crate) fn asked(&self) -> Vec<Duration> {
        self.engine.asked.lock().unwrap().clone()
    }

    /// Lets time pass, with everything in it that waits for a moment of it.
    pub(crate) async fn pass(&self, time: Duration) {
        manual_time::pass(&self.clock, time).await;
    }
}
