//! A copy of the service that does not learn what became of its grant, while another copy serves the same key.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use fencepost_core::{
    Attempt, Backend, Capabilities, Claim, Client, Entry, Error, ErrorKind, Eviction, Guard, How, Info,
    Leave, Left, Listing, Memory, Name, Operator, Page, Place, Record, RecordKind, RecordStore, Reply,
    Request, Result, Runtime, Session, StoredRecord, Token, testing,
};
use fencepost_server::{Audit, Options};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::kit::{Lines, acquire, answer, lease, named, pause, post};

const KEY: &str = "7d4a9f10-6c1e-4a3b-9a55-0c4c7c1f2f11";
const SOON: Duration = Duration::from_secs(20);

/// The engine of a copy that a grant is detached for, without an answer. From then on nothing arrives until it is back.
struct CutOff {
    memory: Arc<Memory>,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    /// The request to detach is never answered. Otherwise it fails.
    hangs: bool,
    detached: AtomicBool,
    is_away: AtomicBool,
}

struct CutOffPlace {
    memory: Arc<Memory>,
    claim: Arc<Claim>,
    entry: Entry,
    line: Arc<Line>,
}

fn firing() -> Value {
    json!({ "once": { "window": "1h" }, "ttl": "60s" })
}

fn lost<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "the answer was lost").on("memory").unknown())
}

impl Backend for CutOff {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.memory).entry(Arc::clone(&claim), how);
        let (memory, line) = (Arc::clone(&self.memory), Arc::clone(&self.line));
        Entry::new(Arc::clone(&claim), how, CutOffPlace { memory, claim, entry, line })
    }

    fn operator(&self) -> &dyn Operator {
        self.memory.operator()
    }
}

impl Place for CutOffPlace {
    fn ask(&mut self) -> Request<'_, Attempt> {
        self.entry.ask()
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.entry.poll_news(cx)
    }

    fn leave(&mut self, how: Leave, may_have_left: bool) -> Request<'_, Left> {
        let line = Arc::clone(&self.line);
        if how != Leave::Detach {
            return match line.is_away.load(SeqCst) {
                true => Request::ready(lost()),
                false => self.entry.leave(how, may_have_left),
            };
        }
        Request::drops(async move {
            self.entry.leave(how, may_have_left).await?;
            // This one knows no answer. The claim's id names the grant.
            self.entry = Arc::clone(&self.memory).entry(Arc::clone(&self.claim), How::Attach);
            line.is_away.store(true, SeqCst);
            line.detached.store(true, SeqCst);
            if line.hangs {
                std::future::pending::<()>().await;
            }
            lost()
        })
    }

    fn session(&self, holds: bool) -> Option<Arc<dyn Session>> {
        self.entry.session(holds)
    }

    fn abandon(&mut self, asking: bool) {
        self.entry.abandon(asking);
    }
}

/// Two copies of the service at one engine. The first one is cut off.
struct Copies {
    first: Router,
    second: Router,
    /// That of the first copy.
    locks: Client,
    line: Arc<Line>,
}

impl Copies {
    fn new(hangs: bool) -> Copies {
        let (memory, line) = (Memory::new(), Arc::new(Line { hangs, ..Line::default() }));
        let cut_off = CutOff { memory: Arc::clone(&memory), line: Arc::clone(&line) };
        let locks = Client::builder().open(|_| Ok(Arc::new(cut_off))).unwrap();
        let others = Client::builder().open(|_| Ok(memory)).unwrap();
        let router = |locks: &Client| fencepost_server::router(locks.clone(), &Options::default()).unwrap();
        Copies { first: router(&locks), second: router(&others), locks, line }
    }

    async fn acquire(router: Router) -> (StatusCode, Value) {
        let mut request = post("/v1/acquire", &named("a", &json!({ "wait": "30s" })));
        request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
        answer(&router, request).await
    }

    /// Asks the second copy for the grant of the key.
    async fn found(&self) -> Value {
        let (status, granted) = Copies::acquire(self.second.clone()).await;
        assert_eq!(status, StatusCode::OK, "{granted}");
        granted
    }

    /// The first copy reaches the engine again, and ends what it has begun.
    async fn is_back(&self) {
        self.line.is_away.store(false, SeqCst);
        let ends = async {
            while self.locks.backlog() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ends).await.expect("its cleanup ends");
    }

    /// The firing that the first copy has given to nobody runs.
    async fn runs_at_the_second(&self) {
        self.is_back().await;
        let (status, granted) = acquire(&self.second, "report", &firing()).await;
        assert_eq!(status, StatusCode::OK, "{granted}");
    }

    /// The caller of the second copy still holds the lock.
    async fn is_held(&self, granted: &Value) {
        let (status, extended) = answer(&self.second, post("/v1/leases/extend", &lease(granted))).await;
        assert_eq!(status, StatusCode::OK, "the lease is valid: {granted}, {extended}");
    }
}

/// The caller asks the other copy with its key, and works under the lock. The first copy must not take that lease back.
#[tokio::test]
async fn a_copy_that_gets_no_answer_does_not_end_a_lease_that_another_one_has_given() {
    let copies = Copies::new(false);
    let (status, problem) = Copies::acquire(copies.first.clone()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    let granted = copies.found().await;
    copies.is_back().await;
    copies.is_held(&granted).await;
}

/// Its caller has hung up, so that its work on the key is given up.
#[tokio::test]
async fn a_copy_whose_caller_is_gone_does_not_end_a_lease_that_another_one_has_given() {
    let copies = Copies::new(true);
    let gone = tokio::spawn(Copies::acquire(copies.first.clone()));
    let detached = async {
        while !copies.line.detached.load(SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, detached).await.expect("the lock is granted");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let granted = copies.found().await;
    tokio::task::yield_now().await;
    // For longer than a place stays without a request.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::task::yield_now().await;
    tokio::time::resume();
    copies.is_back().await;
    copies.is_held(&granted).await;
}

/// The copy does not know whether the grant was detached. A caller that asks again runs the firing.
#[tokio::test]
async fn a_firing_without_a_key_whose_detachment_had_no_answer_has_not_run() {
    let copies = Copies::new(false);
    let (status, problem) = acquire(&copies.first, "report", &firing()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    copies.runs_at_the_second().await;
}

#[tokio::test]
async fn a_firing_without_a_key_whose_caller_is_gone_before_its_lease_has_not_run() {
    let copies = Copies::new(true);
    let first = copies.first.clone();
    let gone = tokio::spawn(async move { acquire(&first, "report", &firing()).await });
    let detached = async {
        while !copies.line.detached.load(SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, detached).await.expect("the lock is granted");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    copies.runs_at_the_second().await;
}

/// An engine that does not answer each request.
struct Silent {
    engine: Arc<dyn Backend>,
    /// It answers nothing about the records of keys, from the note of the first grant on.
    is_away: Arc<AtomicBool>,
    /// In place of that the first such record is lost, when the engine is told to answer.
    loses: Arc<AtomicBool>,
    /// In place of that such a record is written when the engine is told to answer.
    delays: Arc<AtomicBool>,
    /// Such a record is being written.
    writes: Arc<Notify>,
    /// Tells the engine to answer an eviction, or such a record.
    answers: Arc<Notify>,
    /// The answer to an eviction is lost, in place of that.
    loses_evictions: bool,
}

struct SilentRecords {
    records: Arc<dyn RecordStore>,
    is_away: Arc<AtomicBool>,
    loses: Arc<AtomicBool>,
    delays: Arc<AtomicBool>,
    writes: Arc<Notify>,
    answers: Arc<Notify>,
}

impl Silent {
    fn new(engine: Arc<dyn Backend>) -> Silent {
        let (is_away, loses, delays) = (Arc::default(), Arc::default(), Arc::default());
        let (writes, answers) = (Arc::default(), Arc::default());
        Silent { engine, is_away, loses, delays, writes, answers, loses_evictions: false }
    }
}

impl Backend for Silent {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Arc::clone(&self.engine).entry(claim, how)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Silent {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.engine.operator().inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.engine.operator().list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        Reply::coming(async move {
            self.engine.operator().evict(name, token, how).await?;
            if self.loses_evictions {
                return lost();
            }
            self.answers.notified().await;
            Ok(())
        })
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        let records = self.engine.operator().records(runtime)?;
        let (is_away, loses) = (Arc::clone(&self.is_away), Arc::clone(&self.loses));
        let (writes, answers) = (Arc::clone(&self.writes), Arc::clone(&self.answers));
        let delays = Arc::clone(&self.delays);
        Some(Arc::new(SilentRecords { records, is_away, loses, delays, writes, answers }))
    }
}

impl SilentRecords {
    fn is_away(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Request && self.is_away.load(SeqCst)
    }
}

impl RecordStore for SilentRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        if self.is_away(kind) { Reply::ready(lost()) } else { self.records.read(kind, name) }
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        if record.is_some_and(|record| record.text.contains("\"granted\":true")) {
            let loses = self.loses.load(SeqCst);
            if loses || self.delays.load(SeqCst) {
                return Reply::coming(async move {
                    self.writes.notify_one();
                    self.answers.notified().await;
                    let written = self.records.write(kind, name, record.filter(|_| !loses), version).await?;
                    Ok(written.filter(|_| !loses))
                });
            }
            self.is_away.store(true, SeqCst);
        }
        if self.is_away(kind) {
            return Reply::ready(lost());
        }
        self.records.write(kind, name, record, version)
    }
}

/// Another copy may have found the note, so the copy does not take the grant back. Nobody extends the lease, so it ends.
#[tokio::test]
async fn a_firing_whose_note_has_no_answer_is_free_when_its_lease_ends() {
    let (locks, clock, engine) = testing::client();
    let builder = Client::builder().runtime(locks.runtime().clone());
    let client = builder.open(|_| Ok(Arc::new(Silent::new(engine.backend())))).unwrap();
    let router = fencepost_server::router(client, &Options::default()).unwrap();
    let mut request = post("/v1/acquire", &named("report", &firing()));
    request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
    let (status, problem) = answer(&router, request).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    let is_held = async || locks.inspect("report").await.unwrap().holders().count() == 1;
    clock.advance(Duration::from_secs(50)).await;
    assert!(is_held().await);
    clock.advance(Duration::from_secs(15)).await;
    assert!(!is_held().await, "the lease of 60 s has ended");
}

/// An operator could else evict without a trace, by hanging up.
#[tokio::test]
async fn an_eviction_whose_caller_is_gone_is_in_the_audit_log() {
    let (silent, lines) = (Silent::new(Memory::new()), Lines::default());
    let (answers, audit) = (Arc::clone(&silent.answers), Audit::to(lines.clone()));
    let locks = Client::builder().open(|_| Ok(Arc::new(silent))).unwrap();
    let options = Options { audit: audit.clone(), ..Options::default() };
    let router = fencepost_server::router(locks.clone(), &options).unwrap();
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let request = post("/v1/evict", &json!({ "name": "a", "token": held["token"], "now": true }));
    let gone = tokio::spawn(async move { answer(&router, request).await });
    let evicted = async {
        while locks.inspect("a").await.unwrap().holders().count() > 0 {
            pause().await;
        }
    };
    tokio::time::timeout(SOON, evicted).await.expect("it is evicted");
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    // The service ends: it waits for the eviction.
    let mut end = pin!(options.streams.end());
    tokio::select! {
        biased;
        () = &mut end => panic!("the end does not wait for the eviction"),
        () = pause() => {}
    }
    answers.notify_one();
    end.await;
    audit.flush().await;
    assert!(lines.text().contains("\"evicted\""), "{}", lines.text());
}

/// The eviction took effect, so its holder asks why.
#[tokio::test]
async fn an_eviction_whose_answer_was_lost_keeps_its_reason() {
    let silent = Silent { loses_evictions: true, ..Silent::new(Memory::new()) };
    let locks = Client::builder().open(|_| Ok(Arc::new(silent))).unwrap();
    let router = fencepost_server::router(locks, &Options::default()).unwrap();
    let (_, held) = acquire(&router, "a", &json!({})).await;
    let evict = json!({ "name": "a", "token": held["token"], "now": true, "reason": "maintenance" });
    let (status, problem) = answer(&router, post("/v1/evict", &evict)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    let (status, problem) = answer(&router, post("/v1/leases/extend", &lease(&held))).await;
    assert_eq!((status, &problem["why"]), (StatusCode::GONE, &json!("maintenance")), "{problem}");
}

/// Its request was answered when the end began. The grant is found by its key at another copy, so it has to be in the audit log.
#[tokio::test]
async fn the_end_of_the_service_waits_for_a_grant_whose_record_is_being_written() {
    let (silent, lines) = (Silent::new(Memory::new()), Lines::default());
    silent.delays.store(true, SeqCst);
    let (writes, answers) = (Arc::clone(&silent.writes), Arc::clone(&silent.answers));
    let audit = Audit::to(lines.clone());
    let locks = Client::builder().open(|_| Ok(Arc::new(silent))).unwrap();
    let options = Options { audit: audit.clone(), ..Options::default() };
    let router = fencepost_server::router(locks, &options).unwrap();
    let mut request = post("/v1/acquire", &json!({ "name": "a", "wait": "30s" }));
    request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
    let asked = tokio::spawn(async move { answer(&router, request).await });
    tokio::time::timeout(SOON, writes.notified()).await.expect("it is granted");
    let end = tokio::spawn(async move { options.streams.end().await });
    let (status, problem) = tokio::time::timeout(SOON, asked).await.expect("it is answered").unwrap();
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("closing")), "{problem}");
    pause().await;
    assert!(!end.is_finished(), "the end does not wait for the grant");
    answers.notify_one();
    tokio::time::timeout(SOON, end).await.expect("it ends").unwrap();
    audit.flush().await;
    assert!(lines.text().contains("\"granted\""), "{}", lines.text());
}

/// A request that is granted the lock, whose record is then lost, while another waits behind it.
struct Loses {
    locks: Client,
    answers: Arc<Notify>,
    asked: JoinHandle<(StatusCode, Value)>,
    behind: JoinHandle<Result<Guard>>,
}

impl Loses {
    /// Completes when the record is being written.
    async fn new() -> Loses {
        let silent = Silent::new(Memory::new());
        silent.loses.store(true, SeqCst);
        let (writes, answers) = (Arc::clone(&silent.writes), Arc::clone(&silent.answers));
        let locks = Client::builder().open(|_| Ok(Arc::new(silent))).unwrap();
        let router = fencepost_server::router(locks.clone(), &Options::default()).unwrap();
        let held = locks.mutex("a").unwrap().lock().await.unwrap();
        let mut request = post("/v1/acquire", &json!({ "name": "a", "wait": "30s" }));
        request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
        let asked = tokio::spawn(async move { answer(&router, request).await });
        Loses::waiters(&locks, 1).await;
        let behind = locks.mutex("a").unwrap();
        let behind = tokio::spawn(async move { behind.lock().await });
        Loses::waiters(&locks, 2).await;
        held.release().await.unwrap();
        tokio::time::timeout(SOON, writes.notified()).await.expect("it is granted");
        Loses { locks, answers, asked, behind }
    }

    async fn waiters(locks: &Client, count: usize) {
        let look = async {
            while locks.inspect("a").await.unwrap().waiters().count() != count {
                pause().await;
            }
        };
        tokio::time::timeout(SOON, look).await.expect("the queue");
    }

    /// The waiting time of the request passes.
    async fn time_passes() {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(30)).await;
        tokio::task::yield_now().await;
        tokio::time::resume();
    }

    /// The request has timed out, without the 5 s for which a position is kept.
    async fn times_out(self) {
        let asked = tokio::time::timeout(Duration::from_secs(3), self.asked).await;
        let (status, problem) = asked.expect("it is answered").unwrap();
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("timed-out")), "{problem}");
        tokio::time::timeout(Duration::from_secs(3), Loses::waiters(&self.locks, 0))
            .await
            .expect("it has left the queue");
        let behind = tokio::time::timeout(SOON, self.behind).await.expect("it is granted").unwrap();
        behind.unwrap().release().await.unwrap();
    }
}

/// The record was lost in the moment of the grant, so the grant was given back, and the request waits again.
#[tokio::test]
async fn a_request_that_waits_again_after_its_grant_was_given_back_times_out() {
    let mut loses = Loses::new().await;
    loses.answers.notify_one();
    let behind = tokio::time::timeout(SOON, &mut loses.behind).await.expect("it is granted");
    loses.behind = tokio::spawn(async move { behind.unwrap() });
    Loses::waiters(&loses.locks, 1).await;
    Loses::time_passes().await;
    loses.times_out().await;
}

/// Its time passes while the record is being written. The write finds that the record was lost.
#[tokio::test]
async fn a_request_times_out_whose_grant_is_given_back_after_its_time() {
    let loses = Loses::new().await;
    Loses::time_passes().await;
    loses.answers.notify_one();
    loses.times_out().await;
}
