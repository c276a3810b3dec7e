//! Helpers of the unit tests.

use std::path::PathBuf;

use fencepost_core::{BackendUrl, Mode};
use fencepost_testkit::server::TempDir;
use rusqlite::Connection;

use crate::config::Config;
use crate::db::Database;
use crate::db::queue::Request;
use crate::error::Failure;
use crate::process;
use crate::process::heartbeat_file::{BootId, ClientKey, HeartbeatFile};
use crate::process::liveness::{LivenessCheck, Now};

/// Returns a folder that is removed on drop.
pub(crate) fn folder() -> TempDir {
    TempDir::new("sqlite").unwrap()
}

/// A database with a living process, a dead one, one from before a restart and one whose file is missing.
pub(crate) struct TestDb {
    pub(crate) folder: TempDir,
    pub(crate) database: Database,
    pub(crate) heartbeat: HeartbeatFile,
    pub(crate) boot: BootId,
    pub(crate) dead: ClientKey,
}

/// When the tests happen, on both clocks.
pub(crate) const NOW: Now = Now { boot: 1_000_000_000_000, wall: 1_700_000_000_000_000 };

pub(crate) const SECOND: u64 = 1_000_000_000;

impl TestDb {
    pub(crate) fn new() -> TestDb {
        let folder = folder();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let config = Config::parse(&BackendUrl::parse(&url).unwrap()).unwrap();
        let database = Database::open(&config).unwrap_or_else(|failure| panic!("{failure:?}"));
        let boot = BootId::read().unwrap();
        let files_folder = process::folder(database.path());
        let make = || {
            HeartbeatFile::create(
                &files_folder,
                ClientKey::fresh().unwrap(),
                boot,
                database.files().digest(),
                NOW.boot,
            )
            .unwrap()
        };
        let dead = make().key();
        TestDb { heartbeat: make(), folder, database, boot, dead }
    }

    pub(crate) fn files_folder(&self) -> PathBuf {
        process::folder(self.database.path())
    }

    /// Returns what a third process reads `after` nanoseconds later.
    pub(crate) fn later<T>(
        &self,
        after: u64,
        work: impl FnOnce(&Connection, &mut LivenessCheck<'_>) -> Result<T, Failure>,
    ) -> T {
        let now = Now { boot: NOW.boot + after, wall: NOW.wall + after / 1_000 };
        let files_folder = self.files_folder();
        let mut liveness = LivenessCheck::new(&files_folder, self.boot, None, now);
        self.database.write(|db| work(db, &mut liveness)).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    pub(crate) fn now<T>(
        &self,
        work: impl FnOnce(&Connection, &mut LivenessCheck<'_>) -> Result<T, Failure>,
    ) -> T {
        self.later(0, work)
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.database
            .write(|db| Ok(db.execute_batch(sql)?))
            .unwrap_or_else(|failure| panic!("{sql}: {failure:?}"));
    }

    /// A request of the living process.
    pub(crate) fn request(&self, id: u8, mode: Mode) -> Request<'static> {
        Request {
            resource: "r",
            id: [id; 16],
            mode,
            process: self.heartbeat.key(),
            ttl: 30 * SECOND,
            join: true,
            unfair: false,
            pinned: false,
            fixed: false,
            sent: NOW.boot,
            record: "",
            seq: None,
        }
    }
}
