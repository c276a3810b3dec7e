//! Runs that core keeps beside the grants, in a store that fails.

mod manual_time;

use std::collections::HashMap;
use std::future::{IntoFuture, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Clock, Conversion, Effect, Entry, Error, ErrorKind,
    Eviction, Firing, Found, How, Info, Leave, Left, Listing, Memory, Name, Operator, Page, Place, Record,
    RecordKind, RecordStore, Reply, Request, Result, RunEnd, Runs, Runtime, Session, StoredRecord, Token,
};
use tokio::sync::Notify;

const DAY: Duration = Duration::from_secs(86_400);

/// The effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Writes {
    #[default]
    Work,
    Fail,
    LoseReplies,
    /// The next one takes effect and has no reply, and so many fail after it.
    LoseOneThenAway(u32),
    /// The next ones fail, so many of them.
    Away(u32),
    /// They take effect when [`Store::deliver`] is called, and have no reply.
    Wait,
    /// The next one works, and those after it wait.
    ThenWait,
    /// They take so long, on the clock of [`manual_stage`].
    Slow(Duration),
    /// Those that leave no run under way take so long, and the others work.
    SlowEnds(Duration),
    /// The next one works, and the reads after it are like this.
    ThenReads(Reads),
}

/// The effect of a read.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Reads {
    #[default]
    Work,
    /// The next ones fail, so many of them.
    Away(u32),
    /// They take so long, on the clock of [`manual_stage`].
    Slow(Duration),
}

#[derive(Default)]
struct Store {
    records: Mutex<HashMap<Name, (Record, u64)>>,
    writes: Mutex<Writes>,
    reads: Mutex<Reads>,
    late: Mutex<Vec<(Name, Record, u64)>>,
    waits: Notify,
    clock: Option<Clock>,
}

impl Store {
    fn set(&self, writes: Writes) {
        *self.writes.lock() = writes;
    }

    fn set_reads(&self, reads: Reads) {
        *self.reads.lock() = reads;
    }

    /// Waits so long, on the clock of [`manual_stage`].
    async fn pass(&self, time: Duration) {
        let clock = self.clock.as_ref().expect("the time is the test's");
        clock.sleep_until(clock.now() + time).await;
    }

    fn get(&self, name: &Name) -> StoredRecord {
        let found = self.records.lock().get(name).cloned();
        let (record, version) = found.map_or((None, 0), |(record, version)| (Some(record), version));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let now_micros = u64::try_from(now.as_micros()).unwrap();
        StoredRecord { record, version, now_micros }
    }

    fn put(&self, name: &Name, record: &Record, version: u64) -> Option<u64> {
        let mut records = self.records.lock();
        if records.get(name).map_or(0, |(_, version)| *version) != version {
            return None;
        }
        records.insert(name.clone(), (record.clone(), version + 1));
        Some(version + 1)
    }

    /// Returns whether one of the late writes took effect.
    fn deliver(&self) -> bool {
        self.late.lock().drain(..).any(|(name, record, version)| self.put(&name, &record, version).is_some())
    }
}

fn failure() -> Error {
    Error::new(ErrorKind::Denied, "the user may not write runs")
}

fn away() -> Error {
    Error::new(ErrorKind::Unreachable, "the server restarts").transient(true)
}

fn reply_lost() -> Error {
    Error::new(ErrorKind::Unreachable, "the reply is lost").transient(true)
}

impl RecordStore for Store {
    fn read<'a>(&'a self, _: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        let reads = *self.reads.lock();
        match reads {
            Reads::Work => Reply::ready(Ok(self.get(name))),
            Reads::Away(count) => {
                self.set_reads(if count > 1 { Reads::Away(count - 1) } else { Reads::Work });
                Reply::ready(Err(away()))
            }
            Reads::Slow(by) => Reply::coming(async move {
                self.pass(by).await;
                Ok(self.get(name))
            }),
        }
    }

    fn write<'a>(
        &'a self,
        _: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        let record = record.expect("no run is deleted");
        let writes = *self.writes.lock();
        match writes {
            Writes::Work => Reply::ready(Ok(self.put(name, record, version))),
            Writes::Fail => Reply::ready(Err(failure())),
            Writes::Away(count) => {
                self.set(count.checked_sub(1).map_or(Writes::Work, Writes::Away));
                Reply::ready(Err(away()))
            }
            Writes::LoseReplies => {
                self.put(name, record, version);
                self.set(Writes::Work);
                Reply::ready(Err(reply_lost()))
            }
            Writes::LoseOneThenAway(count) => {
                self.put(name, record, version);
                self.set(Writes::Away(count));
                Reply::ready(Err(reply_lost()))
            }
            Writes::Wait => {
                self.late.lock().push((name.clone(), record.clone(), version));
                self.waits.notify_one();
                Reply::coming(pending())
            }
            Writes::ThenWait => {
                self.set(Writes::Wait);
                Reply::ready(Ok(self.put(name, record, version)))
            }
            Writes::Slow(by) => Reply::coming(async move {
                self.waits.notify_one();
                self.pass(by).await;
                Ok(self.put(name, record, version))
            }),
            Writes::SlowEnds(by) => Reply::coming(async move {
                if !record.text.contains("running") {
                    self.pass(by).await;
                }
                Ok(self.put(name, record, version))
            }),
            Writes::ThenReads(reads) => {
                self.set(Writes::Work);
                self.set_reads(reads);
                Reply::ready(Ok(self.put(name, record, version)))
            }
        }
    }
}

fn stage() -> (Client, Arc<Bare>, Arc<Store>) {
    let bare = Bare::over(Store::default());
    let (engine, store) = (Arc::<Bare>::clone(&bare), Arc::clone(&bare.store));
    (Client::builder().history(DAY).open(|_| Ok(engine)).unwrap(), bare, store)
}

/// A stage whose time only the test moves.
fn manual_stage() -> (Clock, Client, Arc<Store>) {
    let clock = Clock::manual();
    let engine = Bare::over(Store { clock: Some(clock.clone()), ..Store::default() });
    let store = Arc::clone(&engine.store);
    let builder = Client::builder().history(DAY).runtime(manual_time::runtime(1, &clock));
    (clock, builder.open(|_| Ok(engine)).unwrap(), store)
}

/// The memory engine with another store.
struct Bare {
    memory: Arc<Memory>,
    store: Arc<Store>,
    /// Grants end before their release, and nobody is told.
    forgets: Arc<AtomicBool>,
}

impl Bare {
    fn over(store: Store) -> Arc<Bare> {
        Arc::new(Bare { memory: Memory::new(), store: Arc::new(store), forgets: Arc::default() })
    }
}

struct BarePlace {
    inner: Entry,
    forgets: Arc<AtomicBool>,
}

impl Place for BarePlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.inner.ask()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let forgets = self.forgets.load(Ordering::Relaxed) && how == Leave::Release;
        let left = self.inner.leave(how, may_have_left);
        if !forgets {
            return left;
        }
        Request::drops(async move { left.await.map(|_| Found::Nothing.into()) })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.inner.session(holds)
    }

    fn convert(&mut self, to: Conversion) -> Request<'_, Attempt> {
        Place::convert(&mut self.inner, to)
    }

    fn abandon(&mut self, asking: bool) {
        self.inner.abandon(asking);
    }
}

impl Backend for Bare {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let inner = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        if how == How::Attach {
            return inner;
        }
        Entry::new(claim, how, BarePlace { inner, forgets: Arc::clone(&self.forgets) })
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Bare {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.memory.operator().inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.operator().evict(name, token, how)
    }

    fn records(&self, _: &Runtime) -> Option<Arc<dyn RecordStore>> {
        Some(Arc::<Store>::clone(&self.store))
    }
}

async fn runs(client: &Client, name: &str) -> Runs {
    client.inspect(name).await.unwrap().runs.unwrap_or_default()
}

fn tokens(runs: &Runs) -> [Option<u64>; 3] {
    [&runs.running, &runs.last, &runs.good].map(|run| run.as_ref().map(|run| run.token.get()))
}

#[tokio::test]
async fn a_plain_lock_works_although_its_run_cannot_be_stored() {
    let (client, _, store) = stage();
    store.set(Writes::Fail);
    let mutex = client.mutex("lock").unwrap();
    let guard = mutex.lock().await.unwrap();
    guard.report(0);
    guard.release().await.unwrap();
    assert_eq!(client.inspect("lock").await.unwrap().runs, None);
    // The end is noted although the beginning was not.
    let guard = mutex.lock().await.unwrap();
    store.set(Writes::Work);
    guard.report(0);
    let token = Some(guard.token().get());
    guard.release().await.unwrap();
    assert_eq!(tokens(&runs(&client, "lock").await), [None, token, token]);
}

/// The attempt's time is over while the store is silent. The lock is granted all the same, because nobody's work rests on the note.
#[tokio::test]
async fn a_silent_store_refuses_nobody_the_lock() {
    let (_, bare, store) = stage();
    store.set(Writes::Wait);
    let builder = Client::builder().history(DAY).attempt_timeout(Duration::from_millis(100));
    let client = builder.open(|_| Ok(bare)).unwrap();
    let mutex = client.mutex("lock").unwrap();
    let guard = mutex.try_lock().await.unwrap().expect("the lock is free");
    assert!(client.mutex("lock").unwrap().try_lock().await.unwrap().is_none(), "it is held");
    guard.release().await.unwrap();
    let guard = mutex.lock().wait(Duration::from_millis(50)).await.expect("the lock is free");
    guard.release().await.unwrap();
}

/// Nobody renews the lease before the guard is there, so a store that is silent for as long as a lease may not use it up.
#[tokio::test]
async fn a_silent_store_uses_up_no_lease() {
    let (_, bare, store) = stage();
    store.set(Writes::Wait);
    let builder = Client::builder().history(DAY).attempt_timeout(Duration::from_secs(60));
    let client = builder.open(|_| Ok(bare)).unwrap();
    let mutex = client.mutex("lock").unwrap();
    let guard = mutex.lock().ttl(Duration::from_secs(2)).await.expect("the lock is free");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_firing_that_cannot_be_recorded_does_not_begin() {
    let (client, _, store) = stage();
    store.set(Writes::Fail);
    let error = client.once("job", DAY).unwrap().try_begin().await.unwrap_err();
    assert!(error.is_denied() && format!("{error}").contains("cannot be recorded"), "{error}");
    let free = client.mutex("job").unwrap().try_lock().await.unwrap();
    free.expect("the lock is free at once").release().await.unwrap();
    store.set(Writes::Work);
    let Some(Firing::First(guard)) = client.once("job", DAY).unwrap().try_begin().await.unwrap() else {
        panic!("no run was recorded");
    };
    guard.report(0);
    guard.release().await.unwrap();
    assert!(matches!(client.once("job", DAY).unwrap().try_begin().await, Ok(Some(Firing::Already(_)))));
}

#[tokio::test]
async fn a_lost_reply_changes_nothing() {
    let (client, _, store) = stage();
    store.set(Writes::LoseReplies);
    let Some(Firing::First(guard)) = client.once("job", DAY).unwrap().try_begin().await.unwrap() else {
        panic!("it has not run");
    };
    let token = Some(guard.token().get());
    assert_eq!(tokens(&runs(&client, "job").await), [token, None, None]);
    guard.report(0);
    store.set(Writes::LoseReplies);
    guard.release().await.unwrap();
    assert_eq!(tokens(&runs(&client, "job").await), [None, token, token]);
}

/// The engine restarts when the work is done.
#[tokio::test]
async fn the_end_of_a_run_is_noted_when_the_engine_is_back() {
    let (client, _, store) = stage();
    let Some(Firing::First(guard)) = client.once("job", DAY).unwrap().try_begin().await.unwrap() else {
        panic!("it has not run");
    };
    let mutex = client.mutex("lock").unwrap();
    for guard in [guard, mutex.lock().await.unwrap()] {
        let (name, token) = (guard.name().to_string(), Some(guard.token().get()));
        guard.report(0);
        store.set(Writes::Away(6));
        guard.release().await.unwrap();
        assert_eq!(tokens(&runs(&client, &name).await), [None, token, token]);
    }
}

#[tokio::test]
async fn a_late_note_of_a_claim_that_was_given_up_has_no_effect() {
    let (client, bare, store) = stage();
    store.set(Writes::Wait);
    let mutex = client.mutex("lock").unwrap();
    let asking = tokio::spawn(async move { mutex.lock().await });
    store.waits.notified().await;
    store.set(Writes::Work);
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    // The next holder comes when the claim is withdrawn, and notes nothing.
    let plain = Client::builder().open(|_| Ok(bare)).unwrap();
    plain.mutex("lock").unwrap().lock().await.unwrap().release().await.unwrap();
    assert!(!store.deliver(), "it would be a run without an end");
    assert_eq!(tokens(&runs(&client, "lock").await), [None, None, None]);
}

#[tokio::test]
async fn a_run_whose_grant_was_lost_is_not_good() {
    let (client, bare, _) = stage();
    let mutex = client.mutex("lock").unwrap();
    let first = mutex.lock().await.unwrap();
    first.report(0);
    let good = Some(first.token().get());
    first.release().await.unwrap();
    let second = mutex.lock().await.unwrap();
    let token = second.token();
    bare.forgets.store(true, Ordering::Relaxed);
    second.report(0);
    assert!(second.release().await.unwrap_err().is_lost());
    let seen = runs(&client, "lock").await;
    assert_eq!(tokens(&seen), [None, Some(token.get()), good]);
    assert_eq!(seen.last.unwrap().end, RunEnd::Lost);
}

/// One host's clock is a year ahead.
#[tokio::test]
async fn a_run_from_the_future_keeps_nobody_from_running() {
    let (client, _, store) = stage();
    let once = client.once("job", DAY).unwrap();
    let Some(Firing::First(guard)) = once.try_begin().await.unwrap() else { panic!("it has not run") };
    guard.report(0);
    guard.release().await.unwrap();
    for (record, _) in store.records.lock().values_mut() {
        let mut runs: serde_json::Value = serde_json::from_str(&record.text).unwrap();
        for run in ["last", "good"] {
            let since = runs[run]["since"].as_u64().unwrap();
            runs[run]["since"] = (since + 365 * 86_400_000_000).into();
        }
        record.text = runs.to_string();
    }
    assert!(matches!(client.once("job", DAY).unwrap().try_begin().await, Ok(Some(Firing::First(_)))));
}

/// The grant alone is there when the attempt's time is over, and the work rests on the note.
#[tokio::test]
async fn a_firing_does_not_begin_while_the_store_is_silent() {
    let (_, bare, store) = stage();
    store.set(Writes::Wait);
    let builder = Client::builder().history(DAY).attempt_timeout(Duration::from_millis(100));
    let client = builder.open(|_| Ok(bare)).unwrap();
    let begun = client.once("job", DAY).unwrap().try_begin().await;
    assert!(!matches!(begun, Ok(Some(Firing::First(_)))), "nobody would know that it ran");
}

#[tokio::test]
async fn a_detached_run_ends_with_the_exit_code_of_its_release() {
    let (client, _, _) = stage();
    for (code, good) in [(0, true), (7, false)] {
        let name = format!("job/{code}");
        let begun = client.once(&name, DAY).unwrap().try_begin().await.unwrap();
        let Some(Firing::First(guard)) = begun else { panic!("it has not run") };
        let token = Some(guard.token().get());
        let lease = guard.detach().await.unwrap();
        assert_eq!(tokens(&runs(&client, &name).await), [token, None, None], "it goes on");
        client.release_run(&lease, code).await.unwrap();
        let seen = runs(&client, &name).await;
        assert_eq!(tokens(&seen), [None, token, token.filter(|_| good)]);
        assert_eq!(seen.last.unwrap().exit_code, Some(code));
    }
}

#[tokio::test]
async fn the_run_of_an_upgraded_lock_has_its_new_token() {
    let (client, _, _) = stage();
    let lock = client.rwlock("table").unwrap();
    let mut guard = lock.read().await.unwrap();
    let before = guard.token();
    guard.upgrade().await.unwrap();
    assert!(guard.token() > before);
    let token = Some(guard.token().get());
    assert_eq!(tokens(&runs(&client, "table").await), [token, None, None]);
    guard.downgrade().await.unwrap();
    guard.report(0);
    let token = Some(guard.token().get());
    guard.release().await.unwrap();
    assert_eq!(tokens(&runs(&client, "table").await), [None, token, token]);
}

/// The request for the release is sent as long as the drop of the last client waits for it.
#[tokio::test]
async fn a_silent_store_keeps_no_lock_that_was_dropped() {
    let (clock, client, store) = manual_stage();
    let guard = client.mutex("lock").unwrap().lock().await.unwrap();
    store.set(Writes::Wait);
    drop(guard);
    let claims = async || client.inspect("lock").await.unwrap().claims.len();
    assert_eq!(claims().await, 1, "its end is noted first");
    manual_time::pass(&clock, Duration::from_millis(250)).await;
    assert_eq!(claims().await, 0, "it is released without the note");
}

/// The request to leave follows, and the lease must not end before it. Later tries have no more time than the first one.
#[tokio::test]
async fn a_store_that_stays_away_uses_up_no_release() {
    let clock = Clock::manual();
    let engine = Bare::over(Store { clock: Some(clock.clone()), ..Store::default() });
    let store = Arc::clone(&engine.store);
    let builder = Client::builder().history(DAY).runtime(manual_time::runtime(1, &clock));
    let client = builder.release_timeout(Duration::from_secs(1)).open(|_| Ok(engine)).unwrap();
    for (ttl, is_released) in [(2, true), (30, false)] {
        let guard = client.mutex("lock").unwrap().lock().ttl(Duration::from_secs(ttl)).await.unwrap();
        store.set(Writes::Away(u32::MAX));
        guard.report(0);
        let release = tokio::spawn(guard.release());
        manual_time::pass(&clock, Duration::from_secs(1)).await;
        assert_eq!(release.await.unwrap().is_ok(), is_released, "within a second, of a lease of {ttl} s");
        manual_time::pass(&clock, Duration::from_secs(1)).await;
        assert_eq!(client.inspect("lock").await.unwrap().claims.len(), 0, "of a lease of {ttl} s");
        store.set(Writes::Work);
    }
}

/// Another host would run the firing again without the note.
#[tokio::test]
async fn the_end_of_a_firing_is_noted_in_a_store_that_takes_a_second() {
    let (clock, client, store) = manual_stage();
    let Some(Firing::First(guard)) = client.once("job", DAY).unwrap().try_begin().await.unwrap() else {
        panic!("it has not run");
    };
    let token = Some(guard.token().get());
    guard.report(0);
    store.set(Writes::Slow(Duration::from_secs(1)));
    let (released, ()) = tokio::join!(guard.release(), manual_time::pass(&clock, Duration::from_secs(3)));
    released.unwrap();
    assert_eq!(tokens(&runs(&client, "job").await), [None, token, token]);
}

/// It would hold a lease that has expired.
#[tokio::test]
async fn a_firing_waits_for_a_silent_store_no_longer_than_its_lease_lasts() {
    let (clock, client, store) = manual_stage();
    store.set(Writes::Wait);
    let once = client.once("job", DAY).unwrap();
    let begins = tokio::spawn(async move { once.begin().ttl(Duration::from_secs(20)).await.map(|_| ()) });
    manual_time::pass(&clock, Duration::from_secs(19)).await;
    assert!(!begins.is_finished(), "the store may still answer");
    manual_time::pass(&clock, Duration::from_secs(1)).await;
    assert!(begins.is_finished());
    let error = begins.await.unwrap().unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("cannot be recorded"), "{error}");
}

#[tokio::test]
async fn a_store_that_stays_away_ends_the_start_of_a_firing_with_its_lease() {
    for writes in [Writes::Wait, Writes::Away(u32::MAX)] {
        let (clock, client, store) = manual_stage();
        store.set(writes);
        let once = client.once("job", DAY).unwrap();
        let begins = tokio::spawn(async move { once.begin().ttl(Duration::from_secs(5)).await.map(|_| ()) });
        manual_time::pass(&clock, Duration::from_secs(60)).await;
        assert!(begins.is_finished(), "its lease is shorter than the outage");
        let error = begins.await.unwrap().unwrap_err();
        assert!(error.is_unreachable() && error.to_string().contains("cannot be recorded"), "{error}");
    }
}

/// The note that it began may arrive later, and holding the lock would not change that.
#[tokio::test]
async fn a_firing_that_did_not_begin_keeps_no_lock_while_the_store_is_silent() {
    for dropped in [false, true] {
        let (clock, client, store) = manual_stage();
        store.set(Writes::Wait);
        let once = client.once("job", DAY).unwrap();
        let begins = tokio::spawn(async move { once.try_begin().await.map(|_| ()) });
        store.waits.notified().await;
        if dropped {
            begins.abort();
            assert!(begins.await.unwrap_err().is_cancelled());
        } else {
            manual_time::pass(&clock, Duration::from_secs(2)).await;
            assert!(begins.await.unwrap().unwrap_err().is_unreachable());
        }
        manual_time::pass(&clock, Duration::from_secs(5)).await;
        for name in ["job", "job#once"] {
            assert_eq!(client.inspect(name).await.unwrap().claims.len(), 0, "{name}");
        }
    }
}

/// Its beginning was noted without a reply. That must not count as a run of the firing.
#[tokio::test]
async fn the_note_of_a_firing_that_did_not_begin_is_taken_back_when_the_store_is_back() {
    let (clock, client, store) = manual_stage();
    store.set(Writes::LoseOneThenAway(8));
    let once = client.once("job", DAY).unwrap();
    let begins = tokio::spawn(async move { once.try_begin().await.map(|_| ()) });
    manual_time::pass(&clock, Duration::from_millis(200)).await;
    assert!(begins.await.unwrap().unwrap_err().is_unreachable());
    assert_eq!(client.inspect("job").await.unwrap().claims.len(), 0, "the lock is free at once");
    manual_time::pass(&clock, Duration::from_secs(5)).await;
    assert_eq!(tokens(&runs(&client, "job").await), [None, None, None]);
}

#[tokio::test]
async fn a_release_says_that_the_grant_was_lost_although_the_store_is_slow() {
    let (_, bare, store) = stage();
    let builder = Client::builder().history(DAY).release_timeout(Duration::from_millis(100));
    let engine = Arc::clone(&bare);
    let client = builder.open(|_| Ok(engine)).unwrap();
    let guard = client.mutex("lock").unwrap().lock().await.unwrap();
    let token = Some(guard.token().get());
    bare.forgets.store(true, Ordering::Relaxed);
    guard.report(0);
    store.set(Writes::ThenWait);
    let release = tokio::spawn(guard.release());
    store.waits.notified().await;
    store.set(Writes::Work);
    let error = release.await.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error}");
    client.runtime().cleaner().idle().await;
    assert_eq!(tokens(&runs(&client, "lock").await), [None, token, None]);
}

/// The engine has granted it, and nothing rests on the note.
#[tokio::test]
async fn a_silent_store_refuses_nobody_an_upgrade() {
    let (_, bare, store) = stage();
    let builder = Client::builder().history(DAY).attempt_timeout(Duration::from_millis(100));
    let client = builder.open(|_| Ok(bare)).unwrap();
    let lock = client.rwlock("table").unwrap();
    let mut guard = lock.read().await.unwrap();
    let before = guard.token();
    store.set(Writes::Wait);
    assert!(guard.try_upgrade().await.unwrap(), "nobody else reads");
    assert!(guard.token() > before);
    assert!(lock.try_read().await.unwrap().is_none(), "it is a write lock");
    // The end of the run is noted with its new token, and nothing is left under the former one.
    store.set(Writes::Work);
    guard.report(0);
    let token = Some(guard.token().get());
    guard.release().await.unwrap();
    assert!(!store.deliver(), "the end was noted since");
    assert_eq!(tokens(&runs(&client, "table").await), [None, token, token]);
}

#[tokio::test]
async fn a_start_looks_again_when_a_look_has_failed() {
    let (client, _, store) = stage();
    store.set_reads(Reads::Away(1));
    let begun = client.once("job", DAY).unwrap().begin().await.unwrap();
    let Firing::First(guard) = begun else { panic!("it has not run") };
    guard.report(0);
    guard.release().await.unwrap();
    store.set_reads(Reads::Away(2));
    assert!(matches!(client.once("job", DAY).unwrap().try_begin().await, Ok(Some(Firing::Already(_)))));
}

#[tokio::test]
async fn a_firing_is_cancelled_when_the_store_has_confirmed_that() {
    let (_, bare, store) = stage();
    let builder = Client::builder().history(DAY).release_timeout(Duration::from_millis(100));
    let client = builder.open(|_| Ok(bare)).unwrap();
    let lease = async || {
        let begun = client.once("job", DAY).unwrap().try_begin().await.unwrap();
        let Some(Firing::First(guard)) = begun else { panic!("it has not run") };
        guard.detach().await.unwrap()
    };
    client.cancel_run(&lease().await).await.unwrap();
    assert_eq!(tokens(&runs(&client, "job").await), [None, None, None]);
    let lease = lease().await;
    store.set(Writes::Wait);
    let error = client.cancel_run(&lease).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

/// The release finds that the grant was lost, and its caller goes away while that is noted.
#[tokio::test]
async fn a_release_that_nobody_waits_for_notes_that_the_grant_was_lost() {
    let (client, bare, store) = stage();
    let guard = client.mutex("lock").unwrap().lock().await.unwrap();
    let token = Some(guard.token().get());
    bare.forgets.store(true, Ordering::Relaxed);
    guard.report(0);
    store.set(Writes::ThenWait);
    let release = tokio::spawn(guard.release());
    store.waits.notified().await;
    assert_eq!(tokens(&runs(&client, "lock").await), [None, token, token]);
    store.set(Writes::Work);
    release.abort();
    assert!(release.await.unwrap_err().is_cancelled());
    client.runtime().cleaner().idle().await;
    assert_eq!(tokens(&runs(&client, "lock").await), [None, token, None]);
}

/// Its record has expired, so there is nothing to be found.
#[tokio::test]
async fn a_detached_run_that_may_not_be_noted_is_released_all_the_same() {
    let (client, _, store) = stage();
    let begun = client.once("job", DAY).unwrap().try_begin().await.unwrap();
    let Some(Firing::First(guard)) = begun else { panic!("it has not run") };
    let lease = guard.detach().await.unwrap();
    store.records.lock().clear();
    store.set(Writes::Fail);
    let error = client.release_run(&lease, 0).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    client.runtime().cleaner().idle().await;
    let free = client.mutex("job").unwrap().try_lock().await.unwrap();
    free.expect("the lock is free").release().await.unwrap();
}

#[tokio::test]
async fn a_firing_whose_end_may_not_be_noted_is_released_all_the_same() {
    let (client, _, store) = stage();
    let Some(Firing::First(guard)) = client.once("job", DAY).unwrap().try_begin().await.unwrap() else {
        panic!("it has not run");
    };
    guard.report(0);
    store.set(Writes::Fail);
    guard.release().await.unwrap();
    let free = client.mutex("job").unwrap().try_lock().await.unwrap();
    free.expect("the lock is free").release().await.unwrap();
}

/// The host of the start is busy for longer than a lease while the beginning is noted. Its client goes on renewing the other locks. The note
/// that there was no run takes longer than the next grant.
#[tokio::test]
async fn a_start_does_not_take_its_own_lost_grant_for_a_run() {
    for reads in [Reads::Work, Reads::Away(1)] {
        let (clock, client, store) = manual_stage();
        store.set(Writes::Slow(Duration::from_secs(1)));
        let once = client.once("job", DAY).unwrap();
        let mut begins = pin!(once.begin().into_future());
        tokio::select! {
            biased;
            _ = &mut begins => panic!("its note takes a second"),
            () = store.waits.notified() => {}
        }
        manual_time::pass(&clock, Duration::from_secs(60)).await;
        store.set(Writes::SlowEnds(Duration::from_secs(1)));
        store.set_reads(reads);
        let (begun, ()) = tokio::join!(begins, manual_time::pass(&clock, Duration::from_secs(2)));
        let Firing::First(guard) = begun.unwrap() else { panic!("nobody has run it") };
        let token = Some(guard.token().get());
        assert_eq!(tokens(&runs(&client, "job").await), [token, None, None]);
    }
}

#[tokio::test]
async fn a_start_that_fails_after_its_grant_may_have_had_an_effect() {
    let (client, _, store) = stage();
    store.set(Writes::ThenReads(Reads::Away(u32::MAX)));
    let error = client.once("job", DAY).unwrap().try_begin().await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "its run was noted: {error}");
}

/// The waiting time ends while the runs are read after the grant.
#[tokio::test]
async fn a_start_that_is_granted_at_the_end_of_its_wait_begins() {
    let clock = Clock::manual();
    let engine = Bare::over(Store { clock: Some(clock.clone()), ..Store::default() });
    let store = Arc::clone(&engine.store);
    let client = |number| Client::builder().runtime(manual_time::runtime(number, &clock));
    let plain = client(2).open(|_| Ok(Arc::<Bare>::clone(&engine))).unwrap();
    let client = client(1).history(DAY).open(|_| Ok(engine)).unwrap();
    // Nobody keeps a run of it.
    let other = plain.mutex("job").unwrap().lock().await.unwrap();
    let once = client.once("job", DAY).unwrap();
    let begins = tokio::spawn(async move { once.try_begin().wait(Duration::from_secs(1)).await });
    manual_time::pass(&clock, Duration::from_millis(900)).await;
    assert!(!begins.is_finished(), "the lock is held");
    store.set(Writes::ThenReads(Reads::Slow(Duration::from_millis(300))));
    other.release().await.unwrap();
    manual_time::pass(&clock, Duration::from_secs(1)).await;
    assert!(matches!(begins.await.unwrap(), Ok(Some(Firing::First(_)))), "the lock is free");
}

/// The whole takes longer than one attempt may.
#[tokio::test]
async fn each_step_of_a_start_that_does_not_wait_has_the_time_of_an_attempt() {
    let (clock, client, store) = manual_stage();
    store.set_reads(Reads::Slow(Duration::from_millis(300)));
    store.set(Writes::Slow(Duration::from_millis(300)));
    let once = client.once("job", DAY).unwrap();
    let begins = tokio::spawn(async move { once.try_begin().await });
    manual_time::pass(&clock, Duration::from_secs(5)).await;
    assert!(matches!(begins.await.unwrap(), Ok(Some(Firing::First(_)))), "the lock is free");
}
