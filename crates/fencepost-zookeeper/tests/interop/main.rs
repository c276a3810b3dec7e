//! Beside other libraries on the same nodes: Curator 5.4 from Debian's jars, and kazoo from the Python package index.

mod kinds;
mod neighbour;

use fencepost_core::sync::Mutex;
use fencepost_testkit::needs;
use std::future::IntoFuture;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost_core::request::Single;
use fencepost_core::{Acquire, Client, Guard, Registry};
use fencepost_testkit::conformance::{Elsewhere, Holder, hold_elsewhere as hold};
use fencepost_testkit::zookeeper::{Config, ZooKeeper};
use neighbour::Neighbour;

/// How long what is to happen may take, beyond a session.
const SOON: Duration = Duration::from_secs(30);
/// The sessions of those who live: a machine that is suspended for seconds ends none.
const SESSION: Duration = Duration::from_secs(20);
/// The sessions of those who are killed: their ends are waited for.
const SHORT: Duration = Duration::from_secs(6);

static SERVER: LazyLock<Mutex<ZooKeeper>> =
    LazyLock::new(|| Mutex::new(ZooKeeper::start(&Config::new()).expect("a server starts")));

fn registry() -> Registry {
    Registry::new().with("zookeeper", fencepost_zookeeper::open)
}

/// The work of the other process; it does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

/// A path of nodes of its own, and a client there.
struct Street {
    hosts: String,
    path: String,
    options: &'static str,
    locks: Client,
    start: Start,
}

/// Starts a neighbour on these hosts, for this path and kind, with this session.
type Start = fn(&str, &str, &str, Duration) -> Neighbour;

fn url(hosts: &str, path: &str, session: Duration, options: &str) -> String {
    format!("zookeeper://{hosts}{path}?session={}ms&timeout=20s{options}", session.as_millis())
}

/// The lock that all of them are about, by its name and by its node.
const NAME: &str = "stock/42";
const NODE: &str = "stock%2F42";

impl Street {
    async fn new(start: Start, options: &'static str) -> Street {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let hosts = SERVER.lock().address().to_string();
        let path = format!("/street{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = url(&hosts, &path, SESSION, options);
        let builder = Client::builder().attempt_timeout(SOON).release_timeout(SOON).connect_wait(SOON);
        let locks = builder.connect(&registry(), &url).await.expect("it connects");
        Street { hosts, path, options, locks, start }
    }

    async fn curator() -> Street {
        Street::new(Neighbour::curator, "").await
    }

    fn neighbour(&self, kind: &str) -> Neighbour {
        self.neighbour_for(kind, SESSION)
    }

    fn neighbour_for(&self, kind: &str, session: Duration) -> Neighbour {
        (self.start)(&self.hosts, &format!("{}/{NODE}", self.path), kind, session)
    }

    /// Waits until the queue has this many claims.
    async fn waiting(&self, count: usize) {
        self.waiting_for(NAME, count).await;
    }

    /// The same for another name.
    async fn waiting_for(&self, name: &str, count: usize) {
        let deadline = Instant::now() + SOON + SOON;
        loop {
            // A server that hangs for a while may be asked again.
            let info = self.locks.inspect(name).await;
            if info.as_ref().is_ok_and(|info| info.waiters().count() == count) {
                return;
            }
            assert!(Instant::now() < deadline, "{count} should wait: {info:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// They hold and we wait in the queue and are woken; we hold and they wait.
    async fn both_ways<'a>(&self, theirs: &str, ours: impl Fn() -> Acquire<Single<'a>>) {
        let other = self.neighbour(theirs);
        other.held();
        let holders: Vec<_> = self.locks.inspect(NAME).await.expect("it can look").claims;
        assert!(holders.len() == 1 && holders[0].holds(), "{holders:?}");
        let busy = ours().wait(Duration::from_secs(2)).await.expect_err("it is held");
        // On a slow machine nobody had the time to look who holds it.
        assert!(busy.is_timeout() && busy.holders().len() <= 1, "{busy}");
        let guard = self.after(ours(), || other.release()).await;
        // The other way round.
        let other = self.neighbour(theirs);
        self.waiting(1).await;
        assert!(other.is_silent(), "two hold it");
        guard.ensure_held().expect("nobody took it");
        let token = guard.token();
        guard.release().await.expect("it was held");
        other.held();
        let guard = self.after(ours(), || other.release()).await;
        assert!(guard.token() > token);
        guard.release().await.expect("it was held");
    }

    /// Their process is killed while it holds, and while it waits. The test lasts until two sessions have ended.
    async fn theirs_is_killed<'a>(&self, theirs: &str, ours: impl Fn() -> Acquire<Single<'a>>) {
        let other = self.neighbour_for(theirs, SHORT);
        other.held();
        let guard = self.after(ours(), || other.kill()).await;
        let other = self.neighbour_for(theirs, SHORT);
        self.waiting(1).await;
        other.kill();
        self.waiting(0).await;
        guard.release().await.expect("it was held");
    }

    /// The guard that comes once `then` was done, and not before.
    async fn after(&self, asked: Acquire<Single<'_>>, then: impl FnOnce()) -> Guard {
        let mut asked = std::pin::pin!(asked.into_future());
        let early = tokio::time::timeout(Duration::from_millis(200), asked.as_mut()).await;
        assert!(early.is_err(), "two hold it");
        tokio::task::block_in_place(then);
        let guard = tokio::time::timeout(SHORT + SOON, asked).await.expect("it is our turn");
        guard.expect("it comes")
    }

    /// Our process is killed while it holds.
    async fn ours_is_killed(&self, theirs: &str) {
        let url = url(&self.hosts, &self.path, SHORT, self.options);
        let mut holder = Holder::start(&url, NAME, SHORT);
        let other = self.neighbour(theirs);
        self.waiting(1).await;
        assert!(other.is_silent(), "two hold it");
        holder.kill();
        other.held();
        other.release();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutex_of_curator() {
    needs!(ZOOKEEPER);
    let street = Street::curator().await;
    let mutex = street.locks.mutex(NAME).expect("a good name");
    street.both_ways("mutex", || mutex.lock()).await;
    street.theirs_is_killed("mutex", || mutex.lock()).await;
    street.ours_is_killed("mutex").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn write_lock_of_curator() {
    needs!(ZOOKEEPER);
    let street = Street::curator().await;
    let pair = street.locks.rwlock(NAME).expect("a good name");
    street.both_ways("write", || pair.write()).await;
    street.both_ways("write", || pair.read()).await;
    street.both_ways("read", || pair.write()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_curator_read_beside_ours() {
    needs!(ZOOKEEPER);
    let street = Street::curator().await;
    let pair = street.locks.rwlock(NAME).expect("a good name");
    let ours = pair.read().await.expect("it is free");
    let theirs = street.neighbour("read");
    theirs.held();
    let more = pair.try_read().await.expect("it answers").expect("readers read together");
    // A writer of theirs waits for all of us, and a late reader of ours behind it.
    let writer = street.neighbour("write");
    street.waiting(1).await;
    assert!(pair.try_read().await.expect("it answers").is_none(), "a reader overtook the writer");
    ours.release().await.expect("it was held");
    more.release().await.expect("it was held");
    assert!(writer.is_silent(), "a writer beside a reader");
    theirs.release();
    writer.held();
    writer.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphore_of_curator() {
    needs!(ZOOKEEPER);
    let street = Street::curator().await;
    let one = street.locks.semaphore(NAME, 1).expect("a good name");
    street.both_ways("semaphore1", || one.acquire()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_shared_with_curator() {
    needs!(ZOOKEEPER);
    let street = Street::curator().await;
    let semaphore = street.locks.semaphore(NAME, 3).expect("a good name");
    let two = semaphore.acquire_many(2).await.expect("it is free");
    let theirs = street.neighbour("semaphore3");
    theirs.held();
    assert!(semaphore.try_acquire().await.expect("it answers").is_none(), "four permits of three");
    let another = street.neighbour("semaphore3");
    street.waiting(1).await;
    assert!(another.is_silent(), "four permits of three");
    two.release().await.expect("it was held");
    another.held();
    let ours = semaphore.acquire().await.expect("one is left");
    theirs.release();
    another.release();
    ours.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_kazoo() {
    needs!(ZOOKEEPER);
    let street = Street::new(Neighbour::kazoo, "&layout=kazoo").await;
    let mutex = street.locks.mutex(NAME).expect("a good name");
    street.both_ways("mutex", || mutex.lock()).await;
    street.theirs_is_killed("mutex", || mutex.lock()).await;
    street.ours_is_killed("mutex").await;
    let pair = street.locks.rwlock(NAME).expect("a good name");
    street.both_ways("write", || pair.read()).await;
    street.both_ways("read", || pair.write()).await;
    let reader = street.neighbour("read");
    reader.held();
    let ours = pair.try_read().await.expect("it answers").expect("readers read together");
    reader.release();
    ours.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_in_a_folder_of_curators_names() {
    needs!(ZOOKEEPER);
    let street = Street::new(Neighbour::kazoo, "").await;
    let mutex = street.locks.mutex(NAME).expect("a good name");
    street.both_ways("beside", || mutex.lock()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphore_of_kazoo() {
    needs!(ZOOKEEPER);
    let street = Street::new(Neighbour::kazoo, "&layout=kazoo").await;
    // A claim for a lease of it takes this lock of kazoo's first: it is in our queue.
    let gate = format!("{NAME}-__lock__");
    let held = street.locks.mutex(&gate).expect("a good name").lock().await.expect("it is free");
    let theirs = street.neighbour("semaphore1");
    street.waiting_for(&gate, 1).await;
    assert!(theirs.is_silent(), "it went past the lock");
    held.release().await.expect("it was held");
    theirs.held();
    // Its leases have no number, and are in no queue.
    let ours = street.locks.mutex(NAME).expect("a good name").try_lock().await.expect("it answers");
    ours.expect("nobody holds that").release().await.expect("it was held");
    // Another of theirs waits for its lease, and gets it.
    let another = street.neighbour("semaphore1");
    assert!(another.is_silent(), "two have the only lease");
    theirs.release();
    another.held();
    another.release();
}
