//! The clients of one fresh namespace, which a case works with.

use super::Need;
use super::fixture::{Elsewhere, Fixture, Fut, Namespace};
use super::layer::{Claims, Layer};
use crate::chaos::{Chaos, Odds};
use crate::faults::Faults;
use crate::history::{Key, Mode, Patience, Recorder, What, boottime};
use crate::witness::{Witness, on_behalf};
use fencepost_core::request::Single;
use fencepost_core::sync::Mutex;
use fencepost_core::{
    Acquire, Backend, BackendUrl, Client, ClientBuilder, Error, Eviction, Guard, Info, Page, Registry, Reply,
    Result, Runtime, Token,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The limit for "at once" on a busy machine. A lock that is handed over only at the end of a lease of
/// [`LONG`] takes longer.
pub(super) const SOON: Duration = Duration::from_secs(9);
/// A lease that does not expire within a case by itself.
pub(super) const LONG: Duration = Duration::from_secs(40);
/// How long runs are kept.
pub(super) const KEEP: Duration = Duration::from_secs(24 * 3600);
/// A lease that expires soon.
pub(super) const SHORT: Duration = Duration::from_millis(400);
/// A lease that does not expire while a busy machine stalls, and is renewed within a case.
pub(super) const RENEWED: Duration = Duration::from_secs(8);
/// For how long the clients retry while the engine is unavailable. A server may need half of it to start on a busy machine.
const OUTAGE: Duration = Duration::from_secs(60);

/// The clients of one fresh namespace, and their history.
#[derive(Clone)]
pub struct Stage(Arc<Inner>);

struct Inner {
    namespace: Box<dyn Namespace>,
    page_row: Option<&'static str>,
    clients: Mutex<Vec<Client>>,
    recorder: Recorder,
}

/// A claim that is queued.
pub(super) struct Waiting {
    task: JoinHandle<Result<Guard>>,
}

impl Waiting {
    /// Returns its guard, which must come soon.
    pub(super) async fn granted(self) -> Guard {
        let guard =
            tokio::time::timeout(SOON, self.task).await.expect("it is its turn, and it was not woken");
        guard.expect("the waiting task does not panic").expect("waiting is no error")
    }

    /// Returns its guard, without a time limit of its own.
    pub(super) async fn granted_at_last(self) -> Guard {
        self.answer().await.expect("waiting is no error")
    }

    /// Returns its answer, without a time limit of its own.
    pub(super) async fn answer(self) -> Result<Guard> {
        self.task.await.expect("the waiting task does not panic")
    }

    /// Whether it has an answer.
    pub(super) fn is_answered(&self) -> bool {
        self.task.is_finished()
    }

    /// Drops the claim while it waits.
    pub(super) async fn give_up(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl Stage {
    pub(super) async fn set(fixture: &impl Fixture) -> Stage {
        let namespace = fixture.namespace().await;
        let recorder = Recorder::new(0, boottime);
        let page_row = fixture.page_row();
        Stage(Arc::new(Inner { namespace, page_row, clients: Mutex::default(), recorder }))
    }

    /// Returns the name of the engine's row in the table of docs/library.md.
    pub(super) fn page_row(&self) -> Option<&'static str> {
        self.0.page_row
    }

    /// Returns the first need that is not met.
    pub(super) async fn missing(&self, needs: &[Need]) -> Option<Need> {
        let client = self.client().await;
        let other = || self.elsewhere("is/there/another", SOON).map(|mut other| other.end());
        let elsewhere = needs.contains(&Need::Elsewhere) && other().is_some();
        let wants_faults = [Need::Server, Need::Faults, Need::Clock].iter().any(|need| needs.contains(need));
        let mut faults = wants_faults.then(|| self.faults()).flatten();
        let clock =
            needs.contains(&Need::Clock) && faults.as_mut().is_some_and(|faults| faults.jump(0).is_ok());
        let hook = |need| match need {
            Need::Elsewhere => elsewhere,
            Need::Clock => clock,
            Need::Server => faults.as_ref().is_some_and(|faults| faults.is_server()),
            _ => faults.is_some(),
        };
        needs.iter().copied().find(|need| !need.is_met(client.capabilities(), hook(*need)))
    }

    pub(super) fn end(&self) -> End {
        End(self.clone())
    }

    /// Makes a client with a long lease.
    pub(super) async fn client(&self) -> Client {
        self.client_of(LONG).await
    }

    /// Makes a client with this lease.
    pub(super) async fn client_of(&self, ttl: Duration) -> Client {
        self.client_with(builder(ttl), |backend, _| backend).await
    }

    /// Makes a client that keeps retrying for `outage` while the engine is unavailable.
    pub(super) async fn impatient(&self, ttl: Duration, outage: Duration) -> Client {
        self.client_with(builder(ttl).outage(outage), |backend, _| backend).await
    }

    /// Makes a client whose attempts have the usual limit, for a case in which the engine does not answer.
    pub(super) async fn hasty(&self, ttl: Duration) -> Client {
        let builder = builder(ttl).attempt_timeout(Duration::from_secs(1));
        self.client_with(builder, |backend, _| backend).await
    }

    /// Makes a client with this label.
    pub(super) async fn client_called(&self, holder: &str) -> Client {
        self.client_with(builder(LONG).label(holder), |backend, _| backend).await
    }

    /// Makes a client that asks the engine to keep its runs.
    pub(super) async fn keeper(&self, label: &str) -> Client {
        let builder = builder(LONG).label(label).history(KEEP);
        self.client_with(builder, |backend, _| backend).await
    }

    /// Makes a client on a network with faults.
    pub(super) async fn troubled(&self, odds: Odds, ttl: Duration) -> Client {
        self.troubled_with(builder(ttl), odds).await
    }

    /// The same with these options.
    pub(super) async fn troubled_with(&self, builder: ClientBuilder, odds: Odds) -> Client {
        let trouble = move |backend, runtime: &Runtime| {
            Arc::new(Chaos::new(backend, runtime.clock().clone(), 1, odds)) as _
        };
        self.client_with(builder, trouble).await
    }

    /// Makes a client whose renewals are all lost.
    pub(super) async fn deaf(&self, ttl: Duration) -> Client {
        self.client_with(builder(ttl), |backend, _| Arc::new(Layer::deaf(backend))).await
    }

    /// Makes a client whose claims are counted.
    pub(super) async fn counted(&self) -> (Client, Arc<Claims>) {
        let claims = Arc::new(Claims::default());
        let counted = Arc::clone(&claims);
        let layer = move |backend, _: &Runtime| Arc::new(Layer::counting(backend, counted)) as _;
        (self.client_with(builder(LONG), layer).await, claims)
    }

    /// Makes a client of which the stage keeps no clone: the case drops the last one.
    pub(super) async fn unshared(&self, builder: ClientBuilder) -> Client {
        self.connect(builder, |backend, _| backend).await.expect("a client can be made")
    }

    /// Makes a client that the engine may refuse.
    pub(super) async fn refusable(&self, builder: ClientBuilder) -> Result<Client> {
        let locks = self.connect(builder, |backend, _| backend).await?;
        self.clients().push(locks.clone());
        Ok(locks)
    }

    async fn client_with(
        &self,
        builder: ClientBuilder,
        layer: impl FnOnce(Arc<dyn Backend>, &Runtime) -> Arc<dyn Backend> + Send + 'static,
    ) -> Client {
        let locks = self.connect(builder, layer).await.expect("a client can be made");
        self.clients().push(locks.clone());
        locks
    }

    async fn connect(
        &self,
        builder: ClientBuilder,
        layer: impl FnOnce(Arc<dyn Backend>, &Runtime) -> Arc<dyn Backend> + Send + 'static,
    ) -> Result<Client> {
        let stage = self.clone();
        let locks = connect(builder, move |runtime| {
            Box::pin(async move {
                let start = Instant::now();
                let mut bare = stage.0.namespace.open(runtime.clone()).await;
                // A busy machine may be slower than the engine's limit.
                while start.elapsed() < OUTAGE && bare.as_ref().is_err_and(Error::is_unreachable) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    bare = stage.0.namespace.open(runtime.clone()).await;
                }
                let bare = bare?;
                let layered = layer(bare, &runtime);
                Ok(Arc::new(Witness::new(layered, stage.0.recorder.clone())) as Arc<dyn Backend>)
            })
        });
        locks.await
    }

    /// Makes another process hold a lock, if the engine outlives a process.
    pub(super) fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        self.0.namespace.elsewhere(name, ttl)
    }

    /// Returns the hooks that make faults in the engine.
    pub(super) fn faults(&self) -> Option<Box<dyn Faults>> {
        self.0.namespace.faults()
    }

    /// Returns the promises of the engine that are no capabilities.
    pub(super) fn namespace(&self) -> &dyn Namespace {
        &*self.0.namespace
    }

    /// See [`Namespace::crash_bound`].
    pub(super) fn crash_bound(&self, ttl: Duration) -> Duration {
        self.0.namespace.crash_bound(ttl)
    }

    /// Returns the recorder of the clients' claims.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// Makes a new client request the lock, and returns when it is queued (or granted).
    pub(super) async fn stand(&self, name: &str, mode: Mode) -> Waiting {
        self.stand_of(self.client().await, name, mode).await
    }

    /// The same for an unfair request.
    pub(super) async fn stand_unfair(&self, name: &str, mode: Mode) -> Waiting {
        self.stand_as(self.client().await, name, mode, true).await
    }

    /// Makes this client request the lock, and returns when it is queued (or granted).
    pub(super) async fn stand_of(&self, locks: Client, name: &str, mode: Mode) -> Waiting {
        self.stand_as(locks, name, mode, false).await
    }

    async fn stand_as(&self, locks: Client, name: &str, mode: Mode, unfair: bool) -> Waiting {
        let key = self.recorder().asked(&name.into(), mode, Patience::Ever, LONG.as_nanos() as u64);
        let (owned, recorder) = (name.to_owned(), self.recorder().clone());
        if unfair {
            recorder.record(key, What::Unfair);
        }
        let task = tokio::spawn(async move {
            let guard = on_behalf(key, acquire(&locks, &owned, mode, unfair)).await?;
            let granted = What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
            recorder.record(key, granted);
            Ok(guard)
        });
        let waiting = Waiting { task };
        self.eventually("the claim waits in the queue", || async {
            self.stands(key) || waiting.is_answered()
        })
        .await;
        waiting
    }

    /// Whether the engine has confirmed a position in the queue.
    pub(super) fn stands(&self, key: Key) -> bool {
        self.recorder().has(|event| event.by == key && matches!(event.what, What::Waiting { .. }))
    }

    /// Waits until the condition is true; fails if that takes long.
    pub(super) async fn eventually<F: Future<Output = bool>>(&self, what: &str, is: impl FnMut() -> F) {
        crate::wait::eventually(SOON, what, is).await;
    }

    /// Fails unless a new client can acquire the lock at once.
    pub(super) async fn assert_free(&self, name: &str) {
        let locks = self.client().await;
        let mutex = locks.mutex(name).expect("a good name");
        let guard = mutex.try_lock().wait(SOON).await.expect("trying is no error");
        let Some(guard) = guard else { panic!("`{name}` is still locked: {:?}", locks.inspect(name).await) };
        guard.release().await.expect("it was held");
    }

    /// Fails unless the lock is busy.
    pub(super) async fn assert_busy(&self, name: &str) {
        assert!(!self.is_granted(name).await, "`{name}` was granted although it is held");
    }

    /// Fails unless the lock is busy because of this guard. The message tells a double grant from a guard
    /// that was lost on a slow machine.
    pub(super) async fn assert_held(&self, guard: &Guard) {
        let granted = self.is_granted(guard.name().as_str()).await;
        assert!(!granted, "`{}` was granted although it is held: {:?}", guard.name(), guard.ensure_held());
    }

    /// Whether another client can acquire it now.
    pub(super) async fn is_granted(&self, name: &str) -> bool {
        let locks = self.client().await;
        let answer = locks.mutex(name).expect("a good name").try_lock().await.expect("busy is no error");
        answer.is_some()
    }

    /// Looks at a lock until `is_described`, for a while: where processes describe their own claims, one that stalls does not.
    pub(super) async fn look(
        &self,
        client: &Client,
        name: &str,
        is_described: impl Fn(&Info) -> bool,
    ) -> Info {
        let start = Instant::now();
        loop {
            let info = client.inspect(name).await.expect("the engine can look");
            if is_described(&info) || start.elapsed() > SOON {
                return info;
            }
        }
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Client>> {
        self.0.clients.lock()
    }
}

/// Evicts a holder. Where processes evict their own holders, one that stalls is asked again. It may have done it by then.
pub(super) async fn evict(client: &Client, name: &str, token: Token, how: &Eviction) -> Result<()> {
    let start = Instant::now();
    let mut evicted = client.evict(name, token, how).await;
    while evicted.as_ref().is_err_and(Error::is_unreachable) && start.elapsed() < 3 * SOON {
        evicted = client.evict(name, token, how).await.or_else(|error| match error.is_mismatch() {
            true => Ok(()),
            false => Err(error),
        });
    }
    evicted
}

/// The options of a client with this lease whose requests have as much time as a busy machine needs. The usual limits of 1 s and 2 s are no
/// promise of the engine.
pub(super) fn builder(ttl: Duration) -> ClientBuilder {
    let builder = Client::builder().ttl(ttl).outage(OUTAGE);
    builder.attempt_timeout(2 * SOON).release_timeout(2 * SOON).close_timeout(2 * SOON)
}

/// Acquires the lock in this mode, and waits for it.
pub(super) async fn lock(locks: &Client, name: &str, mode: Mode) -> Result<Guard> {
    while_too_slow(|| acquire(locks, name, mode, false)).await
}

/// Acquires the lock for a lease that is not renewed, and waits for it.
pub(super) async fn lock_fixed(mutex: &fencepost_core::Mutex, lease: Duration) -> Result<Guard> {
    while_too_slow(|| async { mutex.lock().ttl(lease).no_renewal().await }).await
}

/// Asks again while a short lease has ended before its grant arrived, for as long as a busy machine may cause that.
async fn while_too_slow<F: Future<Output = Result<Guard>>>(ask: impl Fn() -> F) -> Result<Guard> {
    let start = Instant::now();
    loop {
        match ask().await {
            Err(error)
                if error.to_string().contains("ended before its grant arrived")
                    && start.elapsed() < 3 * SOON => {}
            answer => return answer,
        }
    }
}

async fn acquire(locks: &Client, name: &str, mode: Mode, unfair: bool) -> Result<Guard> {
    match mode {
        Mode::Exclusive => fitted(locks.mutex(name)?.lock(), unfair).await,
        Mode::Shared => fitted(locks.rwlock(name)?.read(), unfair).await,
        Mode::Permits { n, of } => fitted(locks.semaphore(name, of)?.acquire_many(n), unfair).await,
    }
}

fn fitted(request: Acquire<Single<'_>>, unfair: bool) -> Acquire<Single<'_>> {
    if unfair { request.unfair() } else { request }
}

/// Tries to acquire the lock in this mode.
pub(super) async fn try_lock(locks: &Client, name: &str, mode: Mode) -> Result<Option<Guard>> {
    match mode {
        Mode::Exclusive => locks.mutex(name)?.try_lock().await,
        Mode::Shared => locks.rwlock(name)?.try_read().await,
        Mode::Permits { n, of } => locks.semaphore(name, of)?.try_acquire_many(n).await,
    }
}

/// The end of a case: closes everything and checks that nothing is left.
pub(super) struct End(Stage);

impl End {
    pub(super) async fn check(self) {
        let stage = self.0;
        let look = stage.client().await;
        if look.capabilities().inspect {
            stage.eventually("nothing is listed any more", || async { listed(&look).await.is_empty() }).await;
        }
        let clients = std::mem::take(&mut *stage.clients());
        for client in clients {
            tokio::time::timeout(3 * SOON, client.close()).await.expect("a client closes soon");
        }
        stage
            .eventually("nothing is left at the engine", || async {
                let left = stage.namespace().leftovers().await.unwrap_or_default();
                if !left.is_empty() {
                    eprintln!("left: {left:?}");
                }
                left.is_empty()
            })
            .await;
        stage.0.namespace.passed();
    }
}

async fn listed(locks: &Client) -> Vec<String> {
    let listing = locks.list("", &Page::default()).await.expect("the engine can list");
    listing.resources.iter().map(|info| info.name.to_string()).collect()
}

/// Opens the engine of a client.
type Opening = Box<dyn FnOnce(Runtime) -> Fut<'static, Result<Arc<dyn Backend>>> + Send>;

/// The openings that were not called yet. A registry takes plain functions only, so the URL carries a number.
static OPENINGS: Mutex<Option<HashMap<u64, Opening>>> = Mutex::new(None);

async fn connect(
    builder: ClientBuilder,
    open: impl FnOnce(Runtime) -> Fut<'static, Result<Arc<dyn Backend>>> + Send + 'static,
) -> Result<Client> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let insert = |openings: &mut Option<HashMap<u64, Opening>>| {
        openings.get_or_insert_default().insert(number, Box::new(open));
    };
    insert(&mut OPENINGS.lock());
    builder.connect(&Registry::new().with("stage", take_opening), &format!("stage:{number}")).await
}

fn take_opening(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    let number = address.decoded().ok().and_then(|text| text.parse().ok());
    let mut openings = OPENINGS.lock();
    let opening = number.and_then(|number: u64| openings.as_mut()?.remove(&number));
    drop(openings);
    match opening {
        Some(opening) => Reply::coming(opening(runtime)),
        None => Reply::ready(Err(Error::invalid("a stage is opened once"))),
    }
}
