//! The end of a wait: at its deadline, behind a slow engine, and with a lease that is shorter than the way of its grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Clock, Entry, Error, ErrorKind, Eviction, Holder, How,
    Info, Leave, Left, Listing, Memory, Name, Operator, Page, Place, Reply, Request, Result, Session, Token,
};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(30);

/// The engine in memory, with answers that take a while.
struct Engine {
    memory: Arc<Memory>,
    slow: Slow,
    /// Requests for a grant that were sent.
    sent: Arc<AtomicU32>,
    /// Tells that a look has begun.
    looks: Arc<Notify>,
}

/// How long an answer takes.
#[derive(Clone, Copy, Default)]
struct Slow {
    grant: Duration,
    /// And then it is a failure.
    fails: bool,
    look: Duration,
    /// Nobody may look.
    hides: bool,
}

struct EnginePlace {
    entry: Entry,
    claim: Arc<Claim>,
    slow: Slow,
    sent: Arc<AtomicU32>,
}

async fn pass(clock: &Clock, time: Duration) {
    clock.sleep_until(clock.now() + time).await;
}

impl Backend for Engine {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return entry;
        }
        let sent = Arc::clone(&self.sent);
        Entry::new(Arc::clone(&claim), how, EnginePlace { entry, claim, slow: self.slow, sent })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Engine {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        Reply::coming(async {
            self.looks.notify_one();
            // The time that the look takes is what the tests are about.
            tokio::time::sleep(self.slow.look).await;
            if self.slow.hides {
                return Err(Error::new(ErrorKind::Denied, "the user may not look"));
            }
            self.memory.operator().inspect(name).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.operator().evict(name, token, how)
    }
}

impl Place for EnginePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        Request::drops(async {
            self.sent.fetch_add(1, Ordering::SeqCst);
            // The request takes no time, its answer does.
            let answer = if self.slow.fails { None } else { Some(self.entry.ask().await) };
            pass(self.claim.runtime.clock(), self.slow.grant).await;
            answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Unreachable, "away").transient(true)))
        })
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        self.entry.leave(how, may_have_left)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

fn client(slow: Slow) -> (Client, Arc<AtomicU32>) {
    let sent = Arc::new(AtomicU32::new(0));
    let engine =
        Arc::new(Engine { memory: Memory::new(), slow, sent: Arc::clone(&sent), looks: Arc::default() });
    // A call that does not wait has as much time as a busy machine needs.
    let builder = Client::builder().outage(Duration::from_millis(300)).attempt_timeout(LONG);
    (builder.open(|_| Ok(engine)).unwrap(), sent)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Each of these grants has ended when it is there.
#[tokio::test]
async fn a_lease_that_ends_before_its_grant_arrives_is_an_error() {
    let (locks, sent) = client(Slow { grant: millis(160), ..Slow::default() });
    let mutex = locks.mutex("a").unwrap();
    let tried = tokio::time::timeout(LONG, mutex.try_lock().ttl(millis(200)).into_future()).await;
    let error = tried.expect("it ends").unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("the lease of 200ms"), "{error}");
    assert_eq!(sent.load(Ordering::SeqCst), 3);
    let error = mutex.lock().ttl(millis(200)).wait(LONG).await.unwrap_err();
    assert!(error.to_string().contains("the lease of 200ms"), "{error}");
    assert!(mutex.lock().await.is_ok(), "nothing is left of them");
}

/// The lock is released while the error learns who holds it.
#[tokio::test]
async fn a_timeout_does_not_name_the_caller_as_the_holder() {
    let looks = Arc::new(Notify::new());
    let slow = Slow { look: millis(50), ..Slow::default() };
    let engine = Engine { memory: Memory::new(), slow, sent: Arc::default(), looks: Arc::clone(&looks) };
    let locks = Client::builder().open(|_| Ok(Arc::new(engine))).unwrap();
    let mutex = locks.mutex("a").unwrap();
    let held = mutex.lock().reason("first").await.unwrap();
    let waits = mutex.lock().reason("second").wait(Duration::ZERO);
    let (outcome, ()) = tokio::join!(waits.into_future(), async {
        looks.notified().await;
        held.release().await.unwrap();
    });
    let error = outcome.unwrap_err();
    assert!(error.is_timeout() && !error.to_string().contains("second"), "{error}");
}

#[tokio::test]
async fn a_short_wait_names_the_holder_too() {
    let (locks, _) = client(Slow { look: millis(10), ..Slow::default() });
    let mutex = locks.mutex("a").unwrap();
    let _held = mutex.lock().reason("first").await.unwrap();
    for wait in [0, 50, 90, 200] {
        let error = mutex.lock().wait(millis(wait)).await.unwrap_err();
        assert!(error.to_string().contains("first"), "after {wait} ms: {error}");
    }
}

#[tokio::test]
async fn a_lock_that_is_held_is_busy_although_nobody_may_look_who_holds_it() {
    let (locks, _) = client(Slow { hides: true, ..Slow::default() });
    let mutex = locks.mutex("a").unwrap();
    let _held = mutex.lock().await.unwrap();
    for wait in [0, 50] {
        let error = mutex.lock().wait(millis(wait)).await.unwrap_err();
        assert!(error.is_timeout(), "after {wait} ms: {error}");
    }
}

#[tokio::test]
async fn a_request_that_does_not_wait_is_repeated_three_times() {
    let (locks, sent) = client(Slow { fails: true, ..Slow::default() });
    let error = locks.mutex("a").unwrap().try_lock().await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(sent.load(Ordering::SeqCst), 4);
}

/// The limit of a call that does not wait is that of all names, and each of its requests takes three quarters of it. A look of a firing has
/// the limit of a call.
#[tokio::test]
async fn a_call_of_several_requests_that_does_not_wait_has_a_limit() {
    let client = |slow| {
        let (memory, sent) = (Memory::new(), Arc::new(AtomicU32::new(0)));
        let engine = Arc::new(Engine { memory, slow, sent: Arc::clone(&sent), looks: Arc::default() });
        (Client::builder().attempt_timeout(millis(400)).open(|_| Ok(engine)).unwrap(), sent)
    };
    loop {
        let (locks, sent) = client(Slow { grant: millis(300), ..Slow::default() });
        let began = Instant::now();
        let tried = locks.multi(["a", "b", "c", "d"]).unwrap().try_lock().await;
        // A machine that stalls may answer the second request after the limit.
        if began.elapsed() < millis(600) {
            let error = tried.unwrap_err();
            assert!(error.is_unreachable(), "{error}");
            assert_eq!(sent.load(Ordering::SeqCst), 2);
            break;
        }
    }
    let (locks, _) = client(Slow { look: LONG, ..Slow::default() });
    let once = locks.once("job", LONG).unwrap();
    let error = once.try_begin().await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let error = once.begin().wait(Duration::ZERO).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

#[tokio::test]
async fn no_request_is_sent_at_the_end_of_a_wait() {
    let (locks, sent) = client(Slow { grant: millis(5), ..Slow::default() });
    let mutex = locks.mutex("a").unwrap();
    let _held = mutex.lock().await.unwrap();
    let before = sent.load(Ordering::SeqCst);
    assert!(mutex.lock().wait(millis(100)).await.unwrap_err().is_timeout());
    assert_eq!(sent.load(Ordering::SeqCst) - before, 1);
}

/// The limit is 300 ms, and the engine takes 200 ms to fail.
#[tokio::test]
async fn an_outage_counts_from_the_first_request_that_has_no_answer() {
    loop {
        let (locks, sent) = client(Slow { grant: millis(200), fails: true, ..Slow::default() });
        let began = Instant::now();
        let error = locks.mutex("a").unwrap().lock().await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(began.elapsed() >= millis(300), "{:?}", began.elapsed());
        // A machine that stalls may answer the first request after the limit.
        if began.elapsed() < millis(400) {
            return assert_eq!(sent.load(Ordering::SeqCst), 2);
        }
    }
}

/// The other request waits for the lock, and nobody polls it any more.
#[tokio::test]
async fn a_close_ends_the_wait_for_another_request_of_the_holder() {
    let (locks, _) = client(Slow::default());
    let (mutex, holder) = (locks.mutex("a").unwrap(), Holder::new());
    let _held = mutex.lock().await.unwrap();
    let mut first = mutex.lock().holder(&holder).reentrant().into_future();
    let polled = tokio::time::timeout(millis(50), &mut first).await;
    assert!(polled.is_err(), "it waits");
    let mut second = mutex.lock().holder(&holder).reentrant().into_future();
    let polled = tokio::time::timeout(millis(50), &mut second).await;
    assert!(polled.is_err(), "it waits for the first one");
    locks.close().await;
    let error = tokio::time::timeout(LONG, second).await.expect("it ends").unwrap_err();
    assert!(error.is_closed(), "{error}");
}
