//! What all entries of one client share.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fencepost_core::{HolderInfo, Loss, Moment, Reply, Result, Runtime};

use crate::bell::{self, Ring};
use crate::census::{Census, Now};
use crate::config::{self, Config};
use crate::error::{self, Trouble};
use crate::line::Turn;
use crate::side::{BootId, Key, Side};
use crate::slots::Slots;
use crate::store::Store;
use crate::watch::Watch;

/// How long a write lock is waited for before it is an error.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One client's view of one database.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) folder: PathBuf,
    pub(crate) boot: BootId,
    pub(crate) pinned: bool,
    pub(crate) key: Key,
    pub(crate) runtime: Runtime,
    pub(crate) slots: Arc<Slots>,
    pub(crate) watch: Arc<Watch>,
    /// Made by the first claim: who only looks leaves no trace.
    side: OnceLock<Side>,
    making: Mutex<()>,
    /// The holder of the last claim as it is written down; mostly all claims of a client have the same.
    holder: Mutex<Option<(Arc<HolderInfo>, Arc<str>)>>,
}

impl Shared {
    pub(crate) fn open(config: &Config, runtime: &Runtime) -> Result<Shared, Trouble> {
        let store = Store::open(config)?;
        let folder = config::folder(store.path());
        let slots = Arc::new(Slots::default());
        Ok(Shared {
            watch: Watch::new(&folder, Arc::clone(&slots)),
            store,
            folder,
            boot: BootId::read()?,
            pinned: config.pinned,
            key: Key::fresh()?,
            runtime: runtime.clone(),
            slots,
            side: OnceLock::new(),
            making: Mutex::new(()),
            holder: Mutex::new(None),
        })
    }

    /// Now, noted before whatever it is noted for.
    pub(crate) fn now(&self) -> Now {
        let clock = self.runtime.clock();
        Now { boot: clock.now().as_nanos(), wall: clock.wall_micros() }
    }

    pub(crate) fn census(&self, now: Now) -> Census<'_> {
        Census::new(&self.folder, self.boot, self.side.get(), now)
    }

    /// Renews at `now` unless the last renewal is younger than `age`, and returns the time that stands in the side file.
    pub(crate) fn renew(self: &Arc<Shared>, now: u64, age: u64) -> Result<u64, Trouble> {
        let side = self.side()?;
        let standing = side.renewed_at();
        if now < standing.saturating_add(age) {
            return Ok(standing);
        }
        self.check_in_place()?;
        Ok(side.renew(now)?)
    }

    /// Fails if one of the database's files is no longer at its path. All claims of this client are lost then.
    pub(crate) fn check_in_place(&self) -> Result<(), Trouble> {
        match self.store.changed()? {
            None if self.store.is_given_up() => Err(self.store.changed_error(&self.path().display())),
            None => Ok(()),
            Some(file) => {
                let file = file.display();
                self.give_up(&format!("{file} was removed or replaced"));
                Err(self.store.changed_error(&file))
            }
        }
    }

    /// Ends all claims: the database that they are in is not the one that others see. The next client may open it once nothing that
    /// was granted here is used any more.
    pub(crate) fn give_up(&self, why: &str) {
        self.store.give_up();
        let mut pins = false;
        for slot in self.slots.all() {
            let validity = &slot.claim.validity;
            if validity.is_confirmed() {
                pins |= self.pinned;
                validity.end_with(Loss::Deleted, why);
            } else {
                slot.ring();
            }
        }
        // What is pinned lasts until its program has ended.
        if let Some(side) = self.side.get().filter(|_| !pins)
            && let Err(error) = side.end()
        {
            tracing::warn!(%error, "the next client waits for the end of this process");
        }
    }

    /// The own side file, with the bell beside it; both are made by the first call.
    pub(crate) fn side(self: &Arc<Shared>) -> Result<&Side, Trouble> {
        if let Some(side) = self.side.get() {
            return Ok(side);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if self.side.get().is_none() {
            // First, so that whoever sees our rows can ring.
            match bell::hang(&self.folder, self.key) {
                Ok(bell) => {
                    let (slots, shared) = (Arc::clone(&self.slots), Arc::downgrade(self));
                    self.runtime.spawn(crate::pump::listen(bell, slots, shared));
                }
                // Some file systems have no FIFOs. The poll remains; whatever else is wrong here is wrong below, too.
                Err(error) => tracing::debug!(%error, "no bell"),
            }
            let files = self.store.files().digest();
            let side = Side::create(&self.folder, self.key, self.boot, files, self.now().boot)?;
            let _ = self.side.set(side);
            // Who opens the database after this look sees the side file.
            self.check_in_place()?;
            self.runtime.spawn(crate::pump::sweep_folder(Arc::downgrade(self)));
        }
        Ok(self.side.get().ok_or_else(|| io::Error::other("the side file was not made"))?)
    }

    pub(crate) fn holder_text(&self, holder: &Arc<HolderInfo>) -> Arc<str> {
        let mut known = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, text)) = &*known
            && Arc::ptr_eq(last, holder)
        {
            return Arc::clone(text);
        }
        let text: Arc<str> = holder.to_line().into();
        *known = Some((Arc::clone(holder), Arc::clone(&text)));
        text
    }

    /// Tells those whose turn it is, after the transaction that made it so.
    pub(crate) fn ring(&self, turns: &[Turn]) {
        for turn in turns {
            if turn.process == self.key {
                self.slots.ring(&turn.id);
            } else {
                bell::ring(&self.folder, turn.process, Ring::Next(turn.id));
            }
        }
    }

    /// Clears away what processes that were seen dead have left.
    pub(crate) fn bury(self: &Arc<Shared>, dead: Vec<Key>) {
        if !dead.is_empty() {
            self.runtime.spawn(crate::pump::sweep(Arc::downgrade(self), dead));
        }
    }

    /// The file by which an evictor tells this process to look at its rows.
    pub(crate) fn summons(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key}.evicted"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.store.path()
    }

    /// Answers on the spot if the database is not being written, else tries again until it is not, for at most `patience`.
    pub(crate) fn patiently<'a, T: Send + Unpin + 'a>(
        self: &Arc<Shared>,
        patience: Duration,
        mut work: impl FnMut() -> Result<T, Trouble> + Send + 'a,
    ) -> Reply<'a, Result<T>> {
        // A writer is done within some 20 µs, sooner than a timer could fire.
        for _ in 0..3 {
            match work() {
                Err(Trouble::Busy) => std::thread::yield_now(),
                Err(trouble) => return Reply::ready(Err(trouble.at(self.path()))),
                Ok(value) => return Reply::ready(Ok(value)),
            }
        }
        let shared = Arc::clone(self);
        Reply::coming(async move {
            let clock = shared.runtime.clock();
            let start = clock.now();
            let mut pause = Pause::new(shared.key);
            loop {
                clock.sleep_until(clock.now() + pause.next()).await;
                match work() {
                    Err(Trouble::Busy) => {}
                    Err(trouble) => return Err(trouble.at(shared.path())),
                    Ok(value) => return Ok(value),
                }
                let waited = clock.now().since(start);
                if waited >= patience {
                    return Err(error::blocked(shared.path(), waited));
                }
            }
        })
    }

    /// Lets go of the files: removes them unless a row still names this process. Then their lock falls and tells others
    /// that it is gone.
    pub(crate) fn retire(&self) {
        let Some(side) = self.side.get() else { return };
        let names_us = self.store.read(|db| {
            let sql = "SELECT 1 FROM line WHERE process = ?1 LIMIT 1";
            Ok(db.prepare_cached(sql)?.exists([self.key])?)
        });
        // After a database was given up nobody knows, and the next client clears the files away.
        if let Ok(false) = names_us {
            side.remove();
            let _ = std::fs::remove_file(bell::path(&self.folder, self.key));
            let _ = std::fs::remove_file(self.summons(self.key));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Pauses between tries at a busy database: short at first, up to 20 ms, each of its own length so that processes which met
/// once do not meet again.
struct Pause {
    micros: u64,
    state: u64,
}

impl Pause {
    fn new(key: Key) -> Pause {
        let (seed, _) = key.0.split_at(8);
        Pause { micros: 100, state: seed.iter().fold(1, |n, b| n << 8 | u64::from(*b)) | 1 }
    }

    fn next(&mut self) -> Duration {
        // xorshift64
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let pause = self.micros / 2 + self.state % (self.micros / 2);
        self.micros = (self.micros * 2).min(20_000);
        Duration::from_micros(pause)
    }
}

/// A moment as the files have it.
pub(crate) fn moment(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}
