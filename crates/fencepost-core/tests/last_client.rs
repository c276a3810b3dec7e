//! The drop of a client's last handle waits for the releases under way, and no longer than it may.

use std::future::{Future, IntoFuture, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, ClientBuilder, Entry, How, Leave, Left, Memory, Operator,
    Place, Request, Session,
};

const LATE: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

/// An engine whose releases take as long as `takes`, or are never answered.
struct Slow {
    memory: Arc<Memory>,
    takes: Option<Duration>,
    /// How often the caller's runtime was left.
    left: Arc<AtomicUsize>,
}

struct SlowPlace {
    entry: Entry,
    claim: Arc<Claim>,
    takes: Option<Duration>,
}

impl Backend for Slow {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return entry;
        }
        let place = SlowPlace { entry, claim: Arc::clone(&claim), takes: self.takes };
        Entry::new(claim, how, place)
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }

    fn leave_caller_runtime(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

impl Place for SlowPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.entry.ask()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        if how == Leave::Detach {
            return self.entry.leave(how, may_have_left);
        }
        let Some(takes) = self.takes else { return Request::drops(pending()) };
        Request::drops(async move {
            let clock = self.claim.runtime.clock();
            clock.sleep_until(clock.now() + takes).await;
            self.entry.leave(how, may_have_left).await
        })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

struct Stage {
    memory: Arc<Memory>,
    left: Arc<AtomicUsize>,
}

impl Stage {
    fn new() -> Stage {
        Stage { memory: Memory::new(), left: Arc::default() }
    }

    fn client(&self, options: ClientBuilder, takes: Option<Duration>) -> Client {
        let (memory, left) = (Arc::clone(&self.memory), Arc::clone(&self.left));
        options.open(|_| Ok(Arc::new(Slow { memory, takes, left }))).unwrap()
    }

    async fn is_free(&self) -> bool {
        let memory = Arc::clone(&self.memory);
        let other = Client::builder().open(|_| Ok(memory)).unwrap();
        other.mutex("a").unwrap().try_lock().await.unwrap().is_some()
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

/// Long enough for any machine.
fn patient() -> ClientBuilder {
    Client::builder().drop_timeout(LONG)
}

#[tokio::test]
async fn it_waits_until_the_lock_is_free() {
    let stage = Stage::new();
    let client = stage.client(patient(), Some(LATE));
    let mutex = client.mutex("a").unwrap();
    drop(mutex.lock().await.unwrap());
    drop(client);
    assert!(!stage.is_free().await, "a lock of the client is a handle as well");
    drop(mutex);
    assert!(stage.is_free().await);
    assert_eq!(stage.left(), 1, "the engine leaves the runtime that is blocked");
}

#[tokio::test]
async fn it_waits_for_a_claim_that_is_withdrawn() {
    let stage = Stage::new();
    let holder = stage.client(patient(), Some(LATE));
    let guard = holder.mutex("a").unwrap().lock().await.unwrap();
    let client = stage.client(patient(), Some(LATE));
    let mutex = client.mutex("a").unwrap();
    {
        let mut waits = mutex.lock().into_future();
        assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(client.backlog(), 1);
    let runtime = client.runtime().clone();
    drop((mutex, client));
    assert_eq!(runtime.cleaner().backlog(), 0);
    drop(guard);
}

#[test]
fn a_dead_engine_holds_it_up_no_longer_than_it_may() {
    let stage = Stage::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = stage.client(Client::builder(), None);
    drop(runtime.block_on(async { client.mutex("a").unwrap().lock().await }).unwrap());
    let began = Instant::now();
    drop(client);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(500), "it waits for {took:?}");
    assert!(took < LONG, "a limit of 500 ms took {took:?}");
}

#[tokio::test]
async fn without_a_release_under_way_it_does_not_leave_the_runtime() {
    let stage = Stage::new();
    let client = stage.client(patient(), Some(Duration::ZERO));
    let guard = client.mutex("a").unwrap().lock().await.unwrap();
    drop(client);
    assert_eq!(stage.left(), 0);
    // A guard never waits, not even as the last.
    drop(guard);
    assert_eq!(stage.left(), 0);
}

#[tokio::test]
async fn zero_means_that_it_never_waits() {
    let stage = Stage::new();
    let client = stage.client(Client::builder().drop_timeout(Duration::ZERO), None);
    drop(client.mutex("a").unwrap().lock().await.unwrap());
    drop(client);
    assert_eq!(stage.left(), 0);
}

#[tokio::test]
async fn a_closed_client_is_not_waited_for() {
    let stage = Stage::new();
    let client = stage.client(patient(), None);
    drop(client.mutex("a").unwrap().lock().await.unwrap());
    let _ = Box::pin(client.close()).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(client);
    assert_eq!(stage.left(), 0);
}

/// The client's own thread does the work, so it never waits for it.
#[tokio::test]
async fn the_thread_of_a_client_never_waits() {
    let stage = Stage::new();
    let client = stage.client(patient(), None);
    let runtime = client.runtime().clone();
    drop(client.mutex("a").unwrap().lock().await.unwrap());
    let (done, is_done) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        drop(client);
        let _ = done.send(());
    });
    tokio::time::timeout(LONG, is_done).await.unwrap().unwrap();
    assert_eq!(stage.left(), 0);
}

#[tokio::test]
async fn it_may_wait_for_any_time() {
    let stage = Stage::new();
    let client = stage.client(Client::builder().drop_timeout(Duration::MAX), Some(LATE));
    drop(client.mutex("a").unwrap().lock().await.unwrap());
    drop(client);
    assert!(stage.is_free().await);
}
