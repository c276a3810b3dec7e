//! Helpers of the unit tests.

use std::path::PathBuf;

use fencepost_core::{BackendUrl, Mode};
use fencepost_testkit::server::TempDir;
use rusqlite::Connection;

use crate::census::{Census, Now};
use crate::config::Config;
use crate::error::Trouble;
use crate::line::Ask;
use crate::side::{BootId, Key, Side};
use crate::store::Store;

/// Returns a folder that is removed on drop.
pub(crate) fn folder() -> TempDir {
    TempDir::new("sqlite").unwrap()
}

/// A database with a living process, a dead one, one from before a restart and one whose file is missing.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) store: Store,
    pub(crate) side: Side,
    pub(crate) boot: BootId,
    pub(crate) dead: Key,
}

/// When the tests happen, on both clocks.
pub(crate) const NOW: Now = Now { boot: 1_000_000_000_000, wall: 1_700_000_000_000_000 };

pub(crate) const SECOND: u64 = 1_000_000_000;

impl Place {
    pub(crate) fn new() -> Place {
        let folder = folder();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let config = Config::parse(&BackendUrl::parse(&url).unwrap()).unwrap();
        let store = Store::open(&config).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        let boot = BootId::read().unwrap();
        let sides = crate::config::folder(store.path());
        let make =
            || Side::create(&sides, Key::fresh().unwrap(), boot, store.files().digest(), NOW.boot).unwrap();
        let dead = make().key();
        Place { side: make(), folder, store, boot, dead }
    }

    pub(crate) fn sides(&self) -> PathBuf {
        crate::config::folder(self.store.path())
    }

    /// What a third process sees `after` nanoseconds.
    pub(crate) fn later<T>(
        &self,
        after: u64,
        work: impl FnOnce(&Connection, &mut Census<'_>) -> Result<T, Trouble>,
    ) -> T {
        let now = Now { boot: NOW.boot + after, wall: NOW.wall + after / 1_000 };
        let sides = self.sides();
        let mut census = Census::new(&sides, self.boot, None, now);
        self.store.write(|db| work(db, &mut census)).unwrap_or_else(|trouble| panic!("{trouble:?}"))
    }

    pub(crate) fn now<T>(&self, work: impl FnOnce(&Connection, &mut Census<'_>) -> Result<T, Trouble>) -> T {
        self.later(0, work)
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.store
            .write(|db| Ok(db.execute_batch(sql)?))
            .unwrap_or_else(|trouble| panic!("{sql}: {trouble:?}"));
    }

    /// A request of the living process.
    pub(crate) fn ask(&self, id: u8, mode: Mode) -> Ask<'static> {
        Ask {
            resource: "r",
            id: [id; 16],
            mode,
            process: self.side.key(),
            ttl: 30 * SECOND,
            join: true,
            pinned: false,
            fixed: false,
            sent: NOW.boot,
            holder: "1 host label",
            reason: None,
            place: None,
        }
    }
}
