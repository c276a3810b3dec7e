//! The state that all entries of one client share.

pub(crate) mod background;
pub(crate) mod records;
pub(crate) mod session;

use fencepost_core::sync::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fencepost_core::{
    Backoff, Claim, ClaimId, Error, ErrorKind, Loss, Moment, Reply, Result, Runtime, Waiters,
};

use crate::config::Config;
use crate::db::Database;
use crate::db::queue::ClaimRef;
use crate::db::rows;
use crate::error::{self, ENGINE, Failure};
use crate::process;
use crate::process::heartbeat_file::{BootId, ClientKey, HeartbeatFile};
use crate::process::inotify::CloseWatch;
use crate::process::liveness::{LivenessCheck, Now};
use crate::process::notify_fifo::{self, Notice};
use crate::waiters::{self, SharedIds, TrackedClaim};

/// How long a write lock is waited for before it is an error.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// One client's view of one database.
pub(crate) struct Client {
    pub(crate) database: Database,
    pub(crate) folder: PathBuf,
    pub(crate) boot: BootId,
    pub(crate) pinned: bool,
    pub(crate) key: ClientKey,
    pub(crate) runtime: Runtime,
    /// The claims whose rows name this client: of each id the latest one.
    pub(crate) waiters: Arc<Waiters<TrackedClaim>>,
    /// The earlier ones, which may hold by the same rows.
    replaced: Mutex<Vec<Weak<TrackedClaim>>>,
    /// The claims of guards that are attached to detached leases.
    pub(crate) attached: SharedIds,
    /// The claims for which core asks no more, while their rows are meant to stay.
    pub(crate) abandoned: SharedIds,
    pub(crate) watch: Arc<CloseWatch>,
    /// Made by the first claim: who only looks leaves no trace.
    heartbeat: OnceLock<HeartbeatFile>,
    /// For how many removals of the side file our rows say no more that it is missing.
    forgotten_removals: AtomicU64,
    making: Mutex<()>,
}

impl Client {
    pub(crate) fn open(config: &Config, runtime: &Runtime) -> Result<Client, Failure> {
        let database = Database::open(config)?;
        let folder = process::folder(database.path());
        let waiters = Arc::new(Waiters::default());
        Ok(Client {
            watch: CloseWatch::new(&folder, Arc::clone(&waiters)),
            database,
            folder,
            boot: BootId::read()?,
            pinned: config.pinned,
            key: ClientKey::fresh()?,
            runtime: runtime.clone(),
            waiters,
            replaced: Mutex::default(),
            attached: SharedIds::default(),
            abandoned: SharedIds::default(),
            heartbeat: OnceLock::new(),
            forgotten_removals: AtomicU64::new(0),
            making: Mutex::new(()),
        })
    }

    /// Adds a claim. Messages that name its id reach it, and no more an earlier claim with that id.
    pub(crate) fn track(&self, claim: TrackedClaim) -> Arc<TrackedClaim> {
        let mut replaced = self.replaced.lock();
        if let Some(earlier) = self.waiters.get(claim.claim.id) {
            replaced.retain(|known| known.strong_count() > 0);
            replaced.push(Arc::downgrade(&earlier));
        }
        self.waiters.insert(claim)
    }

    /// Returns all claims whose rows name this client.
    pub(crate) fn tracked(&self) -> Vec<Arc<TrackedClaim>> {
        // Before the replaced ones are read, because a claim is added to those before a later one takes its place here.
        let mut all = self.waiters.all();
        all.extend(self.replaced());
        all
    }

    fn replaced(&self) -> Vec<Arc<TrackedClaim>> {
        self.replaced.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn tracked_with_id(&self, id: ClaimId) -> impl Iterator<Item = Arc<TrackedClaim>> {
        // Before the replaced ones are read, because a claim is added to those before a later one takes its place here.
        let latest = self.waiters.get(id);
        latest.into_iter().chain(self.replaced().into_iter().filter(move |other| other.claim.id == id))
    }

    /// Ends the claims by the row with this id, which an operator has evicted. `by` names the operator and the reason.
    pub(crate) fn evict(&self, id: &[u8; 16], by: &str) {
        let id = ClaimId::from_u128(u128::from_be_bytes(*id));
        self.tracked_with_id(id).for_each(|tracked| tracked.evict(by));
        for claim in self.attached.with_id(id) {
            claim.validity.end_with(Loss::Evicted, by);
        }
    }

    /// Now, noted before whatever it is noted for.
    pub(crate) fn now(&self) -> Now {
        let clock = self.runtime.clock();
        Now { boot: clock.now().as_nanos(), wall: clock.wall_micros() }
    }

    pub(crate) fn liveness(&self, now: Now) -> LivenessCheck<'_> {
        let liveness = LivenessCheck::new(&self.folder, self.boot, self.heartbeat.get(), now);
        liveness.by_clock(self.runtime.clock())
    }

    /// Renews at `now` unless the last renewal is younger than `age`, and returns the time that stands in the side file.
    pub(crate) fn renew(self: &Arc<Client>, now: u64, age: u64) -> Result<u64, Failure> {
        let heartbeat = self.heartbeat()?;
        let last = heartbeat.renewed_at();
        let is_pending = || heartbeat.remade() > self.forgotten_removals.load(Ordering::Acquire);
        if now < last.saturating_add(age) && !is_pending() {
            return Ok(last);
        }
        self.check_in_place()?;
        self.check_over(heartbeat)?;
        let renewed_at = heartbeat.renew(now)?;
        if is_pending() {
            // Before anything is confirmed, because a second removal would end the leases by the notes of the first.
            let remade = heartbeat.remade();
            self.database.write(|db| Ok(rows::forget_missing(db, self.key)?))?;
            self.forgotten_removals.fetch_max(remade, Ordering::AcqRel);
        }
        Ok(renewed_at)
    }

    /// Fails if one of the database's files is no longer at its path. All claims of this client are lost then.
    pub(crate) fn check_in_place(&self) -> Result<(), Failure> {
        match self.database.changed()? {
            None if self.database.is_given_up() => Err(self.database.changed_error()),
            None => Ok(()),
            Some(file) => {
                self.give_up(&format!("{} was removed or replaced", file.display()));
                Err(self.database.changed_error())
            }
        }
    }

    /// Fails if the database was given up before this claim was confirmed, because nobody could end the claim then.
    pub(crate) fn check_granted(&self, claim: &Claim) -> Result<(), Failure> {
        // Either this sees that the database was given up, or `give_up` sees that the claim was confirmed.
        fence(Ordering::SeqCst);
        if self.database.is_given_up() {
            claim.validity.end(Loss::Deleted);
            return Err(self.database.changed_error());
        }
        Ok(())
    }

    /// Fails once somebody has marked the side file as over, because others take pinned grants of this client for dead then. All of
    /// its claims are lost. The database stays open, so that they can leave it and note how their runs ended.
    pub(crate) fn check_over(&self, heartbeat: &HeartbeatFile) -> Result<(), Failure> {
        if !heartbeat.is_over()? {
            return Ok(());
        }
        let why = format!("the side file {} was marked as over", heartbeat.path().display());
        self.end_claims(&why);
        let message =
            format!("{why}, so others can be granted its locks; connect again, or start this program again");
        Err(Error::new(ErrorKind::Configuration, message).on(ENGINE).into())
    }

    /// Ends all claims: the database that they are in is not the one that others see. The next client may open it once nothing that
    /// was granted here is used any more.
    pub(crate) fn give_up(&self, why: &str) {
        self.database.give_up(why);
        fence(Ordering::SeqCst);
        // Before the connection is closed, because a slow transaction would hold that up.
        let held = self.end_claims(why);
        self.database.close();
        // A pinned grant lasts until its program has ended.
        if let Some(heartbeat) = self.heartbeat.get().filter(|_| !(self.pinned && held))
            && let Err(error) = heartbeat.end()
        {
            tracing::warn!(%error, "the next client waits for the end of this process");
        }
    }

    /// Ends the claims that hold, and wakes those that wait. Returns whether any held.
    fn end_claims(&self, why: &str) -> bool {
        let mut held = false;
        for waiter in self.tracked() {
            let validity = &waiter.claim.validity;
            if validity.is_confirmed() {
                held = true;
                validity.end_with(Loss::Deleted, why);
            } else {
                waiter.wake();
            }
        }
        for claim in self.attached.all() {
            held |= claim.validity.is_confirmed();
            claim.validity.end_with(Loss::Deleted, why);
        }
        held
    }

    /// Returns the other claims of this client that hold by the row of `claim`, because they have its id.
    pub(crate) fn sharing(&self, claim: &Arc<Claim>) -> Vec<Arc<Claim>> {
        let shares = |other: &Arc<Claim>| {
            !Arc::ptr_eq(other, claim) && other.want().name == claim.want().name && !other.is_leaving()
        };
        // One that is not confirmed yet may have extended the row already.
        let mut others = self.attached.with_id(claim.id);
        others.retain(shares);
        let tracked = self.tracked_with_id(claim.id).map(|other| Arc::clone(&other.claim));
        others.extend(tracked.filter(|other| shares(other) && other.validity.is_confirmed()));
        others
    }

    /// The own side file, with the bell beside it; both are made by the first call.
    pub(crate) fn heartbeat(self: &Arc<Client>) -> Result<&HeartbeatFile, Failure> {
        if let Some(heartbeat) = self.heartbeat.get() {
            return Ok(heartbeat);
        }
        let _making = self.making.lock();
        if self.heartbeat.get().is_none() {
            // First: a client that sees our rows can then write to the FIFO.
            let fifo = notify_fifo::create(&self.folder, self.key);
            let files = self.database.files().digest();
            let heartbeat = HeartbeatFile::create(&self.folder, self.key, self.boot, files, self.now().boot)?;
            let _ = self.heartbeat.set(heartbeat);
            // Only now, because a claim that fails here is followed by others, which begin from the start.
            match fifo {
                Ok(fifo) => {
                    let (waiters, client) = (Arc::clone(&self.waiters), Arc::downgrade(self));
                    self.runtime.spawn(background::listen(fifo, waiters, client));
                }
                // Some file systems have no FIFOs. The poll remains; whatever else is wrong here was wrong above, too.
                Err(error) => tracing::debug!(%error, "no bell"),
            }
            // A process that opens the database after this check sees the side file.
            self.check_in_place()?;
            self.runtime.spawn(background::remove_dead_clients(Arc::downgrade(self)));
            self.runtime.spawn(background::remove_idle_names(Arc::downgrade(self)));
        }
        Ok(self.heartbeat.get().ok_or_else(|| io::Error::other("the side file was not made"))?)
    }

    /// Tells those whose turn it is, after the transaction that made it so.
    pub(crate) fn wake(&self, to_wake: &[ClaimRef]) {
        for claim in to_wake {
            if claim.process == self.key {
                waiters::wake(&self.waiters, &claim.id);
            } else {
                notify_fifo::send(&self.folder, claim.process, Notice::Retry(claim.id));
            }
        }
    }

    /// Clears away what processes that were seen dead have left.
    pub(crate) fn remove_dead(self: &Arc<Client>, dead: Vec<ClientKey>) {
        if !dead.is_empty() {
            self.runtime.spawn(background::remove_dead(Arc::downgrade(self), dead));
        }
    }

    /// The file by which an evictor tells this process to look at its rows.
    pub(crate) fn eviction_file(&self, key: ClientKey) -> PathBuf {
        self.folder.join(format!("{key}.evicted"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.database.path()
    }

    /// Answers on the spot if the database is not being written, else tries again until it is not, for at most `timeout`.
    pub(crate) fn retry_while_busy<'a, T: Send + Unpin + 'a>(
        self: &Arc<Client>,
        timeout: Duration,
        mut work: impl FnMut() -> Result<T, Failure> + Send + 'a,
    ) -> Reply<'a, Result<T>> {
        // A writer is done within some 20 µs, sooner than a timer could fire.
        for _ in 0..3 {
            match work() {
                Err(Failure::Busy) => std::thread::yield_now(),
                Err(failure) => return Reply::ready(Err(failure.at(self.path()))),
                Ok(value) => return Reply::ready(Ok(value)),
            }
        }
        let client = Arc::clone(self);
        Reply::coming(async move {
            let clock = client.runtime.clock();
            let start = clock.now();
            // Processes that met once do not meet again.
            let seed = u64::from_be_bytes(client.key.0[..8].try_into().expect("eight bytes"));
            let mut backoff =
                Backoff::new(Duration::from_micros(100), Duration::from_millis(20)).jittered(seed);
            loop {
                backoff.sleep(clock).await;
                match work() {
                    Err(Failure::Busy) => {}
                    Err(failure) => return Err(failure.at(client.path())),
                    Ok(value) => return Ok(value),
                }
                let waited = clock.now().since(start);
                // A clock that is stopped ends each pause at once.
                if waited >= timeout || clock.is_stopped() {
                    return Err(error::blocked(client.path(), client.database.files(), waited));
                }
            }
        })
    }

    /// Lets go of the files: removes them unless a row still names this process. Then their lock falls and tells others
    /// that it is gone.
    pub(crate) fn retire(&self) {
        let Some(heartbeat) = self.heartbeat.get() else { return };
        let names_us = self.database.read(|db| {
            let sql = "SELECT 1 FROM line WHERE process = ?1 LIMIT 1";
            Ok(db.prepare_cached(sql)?.exists([self.key])?)
        });
        // After a database was given up nobody knows, and the next client clears the files away.
        if let Ok(false) = names_us {
            heartbeat.remove();
            let _ = std::fs::remove_file(notify_fifo::path(&self.folder, self.key));
            let _ = std::fs::remove_file(self.eviction_file(self.key));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.retire();
    }
}

/// A moment as the files have it.
pub(crate) fn moment(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}
