//! Requests with a key, and streams, while the engine is slow or fails where it keeps records.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use fencepost_core::{
    Backend, Capabilities, Claim, Client, Entry, Error, ErrorKind, Eviction, How, Info, Listing, Memory,
    Name, Operator, Page, Record, RecordKind, RecordStore, Reply, Result, Runtime, StoredRecord, Token,
};
use fencepost_server::{Options, Streams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::kit::{Events, acquire, answer, lease, named, pause, post};

const KEY: &str = "7d4a9f10-6c1e-4a3b-9a55-0c4c7c1f2f11";
const SOON: Duration = Duration::from_secs(20);

/// A request to the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The first record of a request with a key, or one that is kept.
    Begin,
    /// The record that says that the request was granted.
    Grant,
    /// Reads why a grant was evicted.
    ReadEviction,
}

/// What becomes of a request to the store.
enum Fault {
    /// It takes effect, and its reply is lost.
    LoseReply,
    /// It is lost, or else its reply is. After that the store answers nothing until it is back.
    CutOff { arrives: bool },
    /// It arrives after `go` has a permit.
    Wait,
    /// It fails after `go` has a permit.
    WaitAndFail,
    /// The record was deleted before.
    Forget,
}

/// The store of an engine in memory, with faults.
struct Store {
    records: Arc<dyn RecordStore>,
    faults: Arc<Faults>,
}

struct Faults {
    /// What becomes of the next request of this step.
    next: Mutex<VecDeque<(Step, Fault)>>,
    is_away: AtomicBool,
    /// Deletions of requests' records.
    deletions: AtomicUsize,
    /// Has a permit for each request that waits.
    reached: Semaphore,
    go: Semaphore,
}

fn lost<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "the answer was lost").on("memory").unknown())
}

impl Faults {
    fn take(&self, step: Step) -> Option<Fault> {
        let mut next = self.next.lock().unwrap();
        let at = next.iter().position(|(of, _)| *of == step)?;
        next.remove(at).map(|(_, fault)| fault)
    }

    async fn wait(&self) {
        self.reached.add_permits(1);
        self.go.acquire().await.unwrap().forget();
    }

    /// Completes when a request waits.
    async fn reached(&self) {
        tokio::time::timeout(SOON, self.reached.acquire()).await.expect("the request").unwrap().forget();
    }
}

impl Store {
    async fn write_with(
        &self,
        fault: Fault,
        name: &Name,
        record: Option<&Record>,
        version: u64,
    ) -> Result<Option<u64>> {
        let write = |record| self.records.write(RecordKind::Request, name, record, version);
        match fault {
            Fault::LoseReply => {
                write(record).await?;
                lost()
            }
            Fault::CutOff { arrives } => {
                if arrives {
                    write(record).await?;
                }
                self.faults.is_away.store(true, SeqCst);
                lost()
            }
            Fault::Wait => {
                self.faults.wait().await;
                write(record).await
            }
            Fault::WaitAndFail => {
                self.faults.wait().await;
                Err(Error::new(ErrorKind::Internal, "the engine is broken").on("memory"))
            }
            Fault::Forget => {
                write(None).await?;
                write(record).await
            }
        }
    }
}

impl RecordStore for Store {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(async move {
            if kind == RecordKind::Request && self.faults.is_away.load(SeqCst) {
                return lost();
            }
            if kind == RecordKind::Eviction && self.faults.take(Step::ReadEviction).is_some() {
                self.faults.wait().await;
            }
            self.records.read(kind, name).await
        })
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        if kind != RecordKind::Request {
            return self.records.write(kind, name, record, version);
        }
        Reply::coming(async move {
            if self.faults.is_away.load(SeqCst) {
                return lost();
            }
            let fault = match record {
                None => {
                    self.faults.deletions.fetch_add(1, SeqCst);
                    None
                }
                Some(record) if record.object()?["granted"] == true => self.faults.take(Step::Grant),
                Some(_) => self.faults.take(Step::Begin),
            };
            match fault {
                Some(fault) => self.write_with(fault, name, record, version).await,
                None => self.records.write(kind, name, record, version).await,
            }
        })
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        self.records.sweep()
    }
}

/// An engine in memory whose store has faults.
struct Faulty {
    memory: Arc<Memory>,
    faults: Arc<Faults>,
}

impl Backend for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        Arc::clone(&self.memory).entry(claim, how)
    }

    fn operator(&self) -> &dyn Operator {
        self
    }
}

impl Operator for Faulty {
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.memory.inspect(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.memory.list(prefix, page)
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        self.memory.evict(name, token, how)
    }

    fn records(&self, runtime: &Runtime) -> Option<Arc<dyn RecordStore>> {
        let records = self.memory.records(runtime)?;
        Some(Arc::new(Store { records, faults: Arc::clone(&self.faults) }))
    }
}

struct Service {
    router: Router,
    locks: Client,
    faults: Arc<Faults>,
}

impl Service {
    fn start(faults: impl IntoIterator<Item = (Step, Fault)>) -> Service {
        Service::start_with(faults, &Options::default())
    }

    fn start_with(faults: impl IntoIterator<Item = (Step, Fault)>, options: &Options) -> Service {
        let faults = Arc::new(Faults {
            next: Mutex::new(faults.into_iter().collect()),
            is_away: AtomicBool::new(false),
            deletions: AtomicUsize::new(0),
            reached: Semaphore::new(0),
            go: Semaphore::new(0),
        });
        let engine = Arc::new(Faulty { memory: Memory::new(), faults: Arc::clone(&faults) });
        let locks = Client::builder().open(|_| Ok(engine)).unwrap();
        let router = fencepost_server::router(locks.clone(), options).unwrap();
        Service { router, locks, faults }
    }

    /// Sends a request with the key.
    fn begin(&self, path: &'static str, body: &Value) -> JoinHandle<(StatusCode, Value)> {
        let mut request = post(path, &named("a", body));
        request.headers_mut().insert("idempotency-key", KEY.parse().unwrap());
        let router = self.router.clone();
        tokio::spawn(async move { answer(&router, request).await })
    }

    async fn acquire(&self, body: &Value) -> (StatusCode, Value) {
        self.begin("/v1/acquire", body).await.unwrap()
    }

    /// Waits for this number of claims that wait, or that hold the lock.
    async fn claims(&self, holds: bool, count: usize) {
        let found = async || {
            let info = self.locks.inspect("a").await.unwrap();
            if holds { info.holders().count() } else { info.waiters().count() }
        };
        let look = async {
            while found().await != count {
                pause().await;
            }
        };
        tokio::time::timeout(SOON, look).await.expect("the claims");
    }
}

/// A copy that was paused until another one had taken over the key ends its own grant.
#[tokio::test]
async fn a_firing_whose_record_was_lost_has_not_run() {
    let service = Service::start([(Step::Grant, Fault::Forget)]);
    let (status, granted) = service.acquire(&json!({ "once": { "window": "1h" } })).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
}

/// Lets the waiting time of a request end while its grant is noted. Returns the service and the answer.
async fn end_the_wait_while_the_grant_is_noted(fault: Fault) -> (Service, StatusCode, Value) {
    let fails = matches!(fault, Fault::WaitAndFail);
    let service = Service::start([(Step::Grant, fault)]);
    let (_, held) = acquire(&service.router, "a", &json!({})).await;
    let waits = service.begin("/v1/acquire", &json!({ "wait": "9s" }));
    service.claims(false, 1).await;
    answer(&service.router, post("/v1/leases/release", &lease(&held))).await;
    service.faults.reached().await;
    tokio::time::pause();
    if fails {
        tokio::time::advance(Duration::from_millis(9_500)).await;
        tokio::task::yield_now().await;
        service.faults.go.add_permits(1);
    }
    let (status, problem) = waits.await.unwrap();
    tokio::time::resume();
    (service, status, problem)
}

#[tokio::test]
async fn a_request_whose_grant_is_being_noted_is_told_to_ask_again() {
    let (service, status, problem) = end_the_wait_while_the_grant_is_noted(Fault::Wait).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("in-progress")));
    service.faults.go.add_permits(1);
    let (status, granted) = service.acquire(&json!({ "wait": "9s" })).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
}

#[tokio::test]
async fn a_request_whose_grant_could_not_be_noted_is_told_why() {
    let (_service, status, problem) = end_the_wait_while_the_grant_is_noted(Fault::WaitAndFail).await;
    assert_eq!((status, &problem["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("internal")));
}

/// Asks for the lock while the engine fails at the note of the grant, and for a while after that. Returns the service when it is back.
async fn cut_off_at_the_note(arrives: bool) -> Service {
    let service = Service::start([(Step::Grant, Fault::CutOff { arrives })]);
    let (status, problem) = service.acquire(&json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unreachable")));
    service.claims(true, 1).await;
    service.faults.is_away.store(false, SeqCst);
    service
}

#[tokio::test]
async fn a_grant_that_no_record_names_is_ended() {
    let service = cut_off_at_the_note(false).await;
    service.claims(true, 0).await;
    let (status, granted) = service.acquire(&json!({})).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
}

#[tokio::test]
async fn a_grant_whose_note_had_no_reply_is_found() {
    let service = cut_off_at_the_note(true).await;
    let (status, granted) = service.acquire(&json!({})).await;
    assert_eq!(status, StatusCode::OK, "{granted}");
    let (status, withdrawn) = service.begin("/v1/withdraw", &json!({})).await.unwrap();
    assert_eq!((status, &withdrawn["withdrawn"]), (StatusCode::OK, &json!("released")));
    service.claims(true, 0).await;
}

/// The copy finds its own record, and works with that.
#[tokio::test]
async fn a_first_record_whose_write_had_no_reply_is_not_deleted() {
    let service = Service::start([(Step::Begin, Fault::LoseReply)]);
    let (_, held) = acquire(&service.router, "a", &json!({})).await;
    let waits = service.begin("/v1/acquire", &json!({ "wait": "30s" }));
    service.claims(false, 1).await;
    assert_eq!(service.faults.deletions.load(SeqCst), 0, "the record is in use");
    answer(&service.router, post("/v1/leases/release", &lease(&held))).await;
    let (status, granted) = waits.await.unwrap();
    assert_eq!(status, StatusCode::OK, "{granted}");
}

/// Evicts the holder of a stream while the engine is slow to say why.
async fn evict_while_the_reason_is_slow(closes: bool) {
    let streams = Streams::default();
    let options = Options { streams: streams.clone(), ..Options::default() };
    let service = Service::start_with([(Step::ReadEviction, Fault::Wait)], &options);
    let mut events = Events::hold(&service.router, "a", &json!({ "ttl": "3s" })).await;
    let token = events.next_of("granted").await["token"].as_u64().unwrap();
    service.locks.evict("a", token.into(), &Eviction::new(false)).await.unwrap();
    service.faults.reached().await;
    let ends = tokio::spawn(async move {
        if closes {
            streams.end().await;
        }
    });
    let told = async {
        loop {
            let told = events.next().await.expect("an event");
            if told.0 != "held" {
                return told;
            }
        }
    };
    let (event, data) = tokio::time::timeout(SOON, told).await.expect("the holder is told");
    assert_eq!((event.as_str(), &data["loss"]), ("lost", &json!("evicted")), "{data}");
    drop(events);
    tokio::time::timeout(3 * SOON, ends).await.expect("the service ends").unwrap();
}

#[tokio::test]
async fn an_evicted_holder_is_told_in_time_although_the_reason_is_slow() {
    evict_while_the_reason_is_slow(false).await;
}

#[tokio::test]
async fn an_evicted_holder_is_told_so_while_the_service_ends() {
    evict_while_the_reason_is_slow(true).await;
}
