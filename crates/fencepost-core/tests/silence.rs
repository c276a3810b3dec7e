//! An engine that does not answer is waited for as long as the client says, and is not taken for a busy lock.

use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Effect, Entry, Error, ErrorKind, Eviction, How, Info,
    Leave, Left, Listing, Memory, MultiLock, Name, Operator, Page, Place, Reply, Request, Result, Session,
    Token,
};

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq)]
enum Mute {
    /// Attempts have no answer.
    Attempts,
    /// The first attempt of a claim is answered, all later ones and looks are not.
    Later,
    /// Attempts are answered after a while.
    Slow,
    /// Releases have no answer.
    Releases,
    /// Looks fail. `away`: the engine cannot be reached.
    Looks { away: bool },
}

struct Engine {
    memory: Arc<Memory>,
    mute: Mute,
}

struct EnginePlace {
    entry: Entry,
    claim: Arc<Claim>,
    asked: bool,
    mute: Mute,
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
        let place = EnginePlace { entry, claim: Arc::clone(&claim), asked: false, mute: self.mute };
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        match self.mute {
            Mute::Looks { away: true } => Reply::ready(Err(Error::new(ErrorKind::Unreachable, "away"))),
            _ => Reply::ready(Ok(())),
        }
    }
}

impl Operator for Engine {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        match self.mute {
            Mute::Releases => self.memory.operator().inspect(name),
            Mute::Looks { .. } => Reply::ready(Err(Error::new(ErrorKind::Unreachable, "away"))),
            _ => Reply::coming(pending()),
        }
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
        let asked = std::mem::replace(&mut self.asked, true);
        match self.mute {
            Mute::Releases | Mute::Looks { .. } => self.entry.ask(),
            Mute::Later if !asked => self.entry.ask(),
            Mute::Attempts | Mute::Later => Request::drops(pending()),
            Mute::Slow => Request::drops(async {
                let clock = self.claim.runtime.clock();
                clock.sleep_until(clock.now() + SOON).await;
                self.entry.ask().await
            }),
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // It is always worth asking again.
        if self.mute == Mute::Later { Poll::Ready(()) } else { self.entry.poll_news(cx) }
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if self.mute == Mute::Releases && how != Leave::Detach {
            return Request::drops(pending());
        }
        self.entry.leave(how, may_have_left)
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

fn client(memory: &Arc<Memory>, mute: Mute) -> Client {
    let engine = Arc::new(Engine { memory: Arc::clone(memory), mute });
    Client::builder().attempt_timeout(4 * SOON).release_timeout(SOON).open(|_| Ok(engine)).unwrap()
}

/// Fails if it takes as long as no bound of these tests.
async fn bounded<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("it waits beyond its bound")
}

#[tokio::test]
async fn an_engine_that_says_nothing_does_not_say_busy() {
    let locks = client(&Memory::new(), Mute::Attempts);
    let (mutex, both) = (locks.mutex("a").unwrap(), locks.multi(["a", "b"]).unwrap());
    for wait in [Duration::ZERO, SOON, 8 * SOON] {
        let error = bounded(mutex.lock().wait(wait)).await.unwrap_err();
        assert!(error.is_unreachable() && error.effect() == Effect::Unknown, "{error}");
        let error = bounded(mutex.try_lock().wait(wait)).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        let error = bounded(both.try_lock().wait(wait)).await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
    }
}

/// Its limit is that of an attempt.
#[tokio::test]
async fn a_call_that_does_not_wait_ends_although_the_engine_says_nothing() {
    let locks = client(&Memory::new(), Mute::Attempts);
    let (mutex, both) = (locks.mutex("a").unwrap(), locks.multi(["a", "b"]).unwrap());
    let (table, pool) = (locks.rwlock("t").unwrap(), locks.semaphore("s", 2).unwrap());
    for call in [mutex.try_lock(), table.try_read(), table.try_write(), pool.try_acquire()] {
        let error = bounded(call).await.unwrap_err();
        assert!(error.is_unreachable() && error.effect() == Effect::Unknown, "{error}");
        assert!(error.to_string().contains("200ms"), "{error}");
    }
    let error = bounded(both.try_lock()).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

#[tokio::test]
async fn one_attempt_is_made_without_a_waiting_time() {
    let locks = client(&Memory::new(), Mute::Slow);
    let mutex = locks.mutex("a").unwrap();
    let guard = bounded(mutex.lock().wait(Duration::ZERO)).await.unwrap();
    let error = bounded(mutex.lock().wait(Duration::ZERO)).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(bounded(mutex.try_lock().wait(Duration::ZERO)).await.unwrap().is_none());
    guard.release().await.unwrap();
    bounded(mutex.try_lock().wait(Duration::ZERO))
        .await
        .unwrap()
        .expect("it is free")
        .release()
        .await
        .unwrap();
}

/// The engine has said busy, and the waiting time ends while it is asked again.
#[tokio::test]
async fn what_was_busy_when_it_was_last_heard_of_is_busy() {
    let memory = Memory::new();
    let held = client(&memory, Mute::Later).mutex("a").unwrap().lock().await.unwrap();
    let mutex = client(&memory, Mute::Later).mutex("a").unwrap();
    loop {
        let began = Instant::now();
        let error = bounded(mutex.lock().wait(SOON)).await.unwrap_err();
        if error.is_timeout() {
            break;
        }
        // On a machine that stalls the engine has been silent for long enough to count as failed.
        assert!(error.is_unreachable() && began.elapsed() >= Duration::from_secs(1), "{error}");
    }
    // A silence of a second is one of the engine.
    let error = bounded(mutex.lock().wait(Duration::from_millis(1_500))).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    drop(held);
}

/// The look at the holders is for the message alone.
#[tokio::test]
async fn a_look_that_fails_does_not_make_a_busy_lock_an_engine_out_of_reach() {
    let memory = Memory::new();
    let held = client(&memory, Mute::Releases).mutex("a").unwrap().lock().await.unwrap();
    for away in [false, true] {
        let mutex = client(&memory, Mute::Looks { away }).mutex("a").unwrap();
        let error = bounded(mutex.lock().wait(SOON)).await.unwrap_err();
        assert_eq!((error.is_timeout(), error.is_unreachable()), (!away, away), "{error}");
        let error = bounded(mutex.lock().wait(Duration::ZERO)).await.unwrap_err();
        assert_eq!((error.is_timeout(), error.is_unreachable()), (!away, away), "{error}");
    }
    drop(held);
}

#[tokio::test]
async fn a_release_without_an_answer_ends_in_time_and_goes_on() {
    let locks = client(&Memory::new(), Mute::Releases);
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    let error = bounded(guard.release()).await.unwrap_err();
    assert!(error.is_unreachable() && error.effect() == Effect::Unknown, "{error}");
    assert_eq!(locks.backlog(), 1, "it goes on in the background");
    let both = locks.multi(["b", "c"]).unwrap().lock().await.unwrap();
    assert!(bounded(both.release()).await.unwrap_err().is_unreachable());
    assert_eq!(locks.backlog(), 3);
}

#[tokio::test]
async fn an_engine_that_does_not_confirm_a_release_holds_up_no_other() {
    let (silent, other) =
        (client(&Memory::new(), Mute::Releases), Client::builder().open(|_| Ok(Memory::new())));
    let other = other.unwrap();
    let parts = [("last", silent.multi(["a"]).unwrap()), ("first", other.multi(["b"]).unwrap())];
    let both = MultiLock::across(parts).unwrap().lock().await.unwrap();
    let mut release = Box::pin(both.release());
    assert!(poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await);
    drop(other.mutex("b").unwrap().try_lock().await.unwrap().expect("it is released"));
    assert!(bounded(release).await.unwrap_err().is_unreachable());
}

#[tokio::test]
async fn a_release_waits_no_longer_than_the_lease_lasts() {
    let engine = Arc::new(Engine { memory: Memory::new(), mute: Mute::Releases });
    let locks = Client::builder().release_timeout(2 * LONG).open(|_| Ok(engine)).unwrap();
    let mutex = locks.mutex("a").unwrap();
    let (ttl, mut releases) = (Duration::from_millis(300), 0);
    loop {
        let began = Instant::now();
        let guard = mutex.lock().ttl(ttl).no_renewal().await.unwrap();
        let error = bounded(guard.release()).await.unwrap_err();
        releases += 1;
        if error.is_unreachable() {
            break;
        }
        // On a machine that stalls the lease may end before.
        assert!(error.is_lost() && began.elapsed() >= ttl / 2, "{error}");
    }
    // One that is lost is not waited for at all.
    let guard = bounded(mutex.lock()).await.unwrap();
    locks.evict("a", guard.token(), &Eviction::default()).await.unwrap();
    guard.lost().await;
    let error = bounded(guard.release()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(locks.backlog(), releases + 1);
}
