//! Looks at all locks of the engine, by one task for all who listen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::{Client, Name};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::history::History;
use crate::seen::{Seen, now_micros};

/// How often the task looks while somebody listens.
const EVERY: Duration = Duration::from_millis(500);
/// How often it looks for the history alone.
const IDLE: Duration = Duration::from_secs(20);
/// The history alone takes at most one part in this number of the engine's time.
const IDLE_PART: u32 = 20;

/// For how many locks a look asks for the runs, because a grant has ended.
const RUNS: usize = 10;
/// Each look of this number asks for the runs of jobs whose age is watched.
const RUNS_EVERY: u64 = 4;

/// All locks at one time, or why they are not known.
pub(crate) type Snapshot = Result<Arc<Seen>, &'static str>;
/// Why they are not known. The engine's own text is for the log.
const AWAY: &str = "the engine does not list its locks; the log of the service has the cause";

/// A look at the engine.
#[derive(Clone)]
struct Look {
    began: Instant,
    snapshot: Snapshot,
}

/// The task that looks, and those who listen to it. The task ends soon after the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Snapshots(Arc<Shared>);

struct Shared {
    locks: Client,
    history: History,
    /// The jobs whose runs are watched.
    max_ages: Arc<[(Name, Duration)]>,
    seen: watch::Sender<Option<Look>>,
    is_looking: AtomicBool,
    /// How many looks have begun.
    begun: AtomicU64,
    /// Asks for a look at once.
    wake: Arc<Notify>,
}

/// The looks that began after the listener came.
pub(crate) struct Looks {
    seen: watch::Receiver<Option<Look>>,
    since: Instant,
}

impl Looks {
    /// Waits for the next look. `None`: the service has ended.
    ///
    /// # Cancel safety
    /// Safe: the look is returned by the next call.
    pub(crate) async fn next(&mut self) -> Option<Snapshot> {
        loop {
            self.seen.changed().await.ok()?;
            let look = self.seen.borrow_and_update().clone();
            if let Some(look) = look.filter(|look| look.began >= self.since) {
                return Some(look.snapshot);
            }
        }
    }
}

impl Snapshots {
    pub(crate) fn new(locks: Client, history: History, max_ages: Arc<[(Name, Duration)]>) -> Snapshots {
        let seen = watch::Sender::new(None);
        let (is_looking, begun, wake) = (AtomicBool::new(false), AtomicU64::new(0), Arc::default());
        Snapshots(Arc::new(Shared { locks, history, max_ages, seen, is_looking, begun, wake }))
    }

    /// Starts the task, unless it runs.
    pub(crate) fn start(&self) {
        if !self.0.is_looking.swap(true, Ordering::SeqCst) {
            self.0.history.begin();
            let (looking, wake) = (Looking(Arc::downgrade(&self.0)), Arc::clone(&self.0.wake));
            tokio::spawn(async move { looking.look(&wake).await });
        }
    }

    /// Looks at the engine at once, and every [`EVERY`] for as long as the listener lives.
    pub(crate) fn subscribe(&self) -> Looks {
        let looks = Looks { seen: self.0.seen.subscribe(), since: Instant::now() };
        self.start();
        self.0.wake.notify_one();
        looks
    }
}

impl Shared {
    async fn look(&self, began: Instant) {
        let seen = self.all().await.map(Arc::new);
        let was_away = self.seen.borrow().as_ref().is_some_and(|look| look.snapshot.is_err());
        match &seen {
            Ok(seen) => {
                if was_away {
                    tracing::warn!("the locks can be listed again");
                }
                self.history.observe(seen);
                self.ask_runs(seen.number).await;
            }
            Err(error) => {
                if !was_away && !error.is_closed() {
                    tracing::warn!(%error, "the locks cannot be listed");
                }
            }
        }
        self.seen.send_replace(Some(Look { began, snapshot: seen.map_err(|_| AWAY) }));
    }

    /// Asks for the runs of locks whose grants have ended, and of jobs whose age is watched. What fails is asked for later or not at all.
    async fn ask_runs(&self, number: u64) {
        if !self.locks.capabilities().history {
            return;
        }
        let ended = std::iter::from_fn(|| self.history.take_ended()).take(RUNS);
        let watched = self.max_ages.iter().filter(|_| number.is_multiple_of(RUNS_EVERY));
        let names: Vec<Name> = ended.chain(watched.map(|(name, _)| name.clone())).collect();
        for name in names {
            if let Ok(info) = self.locks.inspect(name.as_str()).await
                && let Some(runs) = &info.runs
            {
                self.history.ran(&name, runs);
            }
        }
    }

    async fn all(&self) -> fencepost_core::Result<Seen> {
        let (began_micros, number) = (now_micros(), self.begun.fetch_add(1, Ordering::Relaxed));
        let (mut listing, mut locks) = (self.locks.list_all(""), BTreeMap::new());
        while let Some(info) = listing.next().await {
            let info = info?;
            locks.insert(info.name.as_str().to_owned(), info);
        }
        let callers = self.history.callers(began_micros, &locks);
        Ok(Seen { number, began_micros, at_micros: now_micros(), locks, callers })
    }
}

/// The task that looks. After its end the next request starts another one.
struct Looking(Weak<Shared>);

impl Looking {
    async fn look(&self, wake: &Notify) {
        while let Some(shared) = self.0.upgrade() {
            let began = Instant::now();
            shared.look(began).await;
            let took = began.elapsed();
            let pause = if shared.seen.receiver_count() > 0 { EVERY } else { IDLE.max(took * IDLE_PART) };
            drop(shared);
            // A slow engine has half of the time for others.
            tokio::time::sleep(took.min(EVERY)).await;
            tokio::select! {
                () = tokio::time::sleep_until(began + pause) => {}
                () = wake.notified() => {}
            }
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.is_looking.store(false, Ordering::SeqCst);
        if std::thread::panicking() {
            shared.seen.send_replace(Some(Look { began: Instant::now(), snapshot: Err(AWAY) }));
        }
    }
}
