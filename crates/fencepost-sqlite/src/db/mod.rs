//! The database: opening it, and transactions on it.

use fencepost_core::sync::{Mutex, MutexGuard};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fencepost_core::{Error, ErrorKind};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

pub(crate) mod files;
pub(crate) mod idle;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod queue;
pub(crate) mod records;
pub(crate) mod rows;
mod schema;

use crate::checks::filesystem::{self, Refusal};
use crate::config::{Config, Durability};
use crate::db::files::Files;
use crate::error::{self, ENGINE, Failure};
use crate::process;
use crate::process::heartbeat_file;
use crate::process::notify_fifo::{self, Notice};

/// How long a renewal waits for a transaction of another thread. Most take some 20 µs, and one that waits for a slow disk takes seconds.
const PATIENCE: Duration = Duration::from_millis(10);

/// One client's connection. Transactions run on the caller's thread: a hop to another costs more than the transaction.
pub(crate) struct Database {
    /// Held for one transaction at a time, never across an await. `None`: given up, because somebody changed the files.
    db: Mutex<Option<Connection>>,
    path: PathBuf,
    /// The files that were opened.
    files: Files,
    /// Names the file that was changed, once the connection is given up.
    changed: OnceLock<String>,
}

impl Database {
    /// Opens the database, and makes it where there is none. [`Failure::Busy`]: try again soon.
    pub(crate) fn open(config: &Config) -> Result<Database, Failure> {
        let path = find(config)?;
        // SQLite would remove the log of an emptied database, and make one where it was removed: so this comes first.
        let before = Files::at(&path)?;
        refuse_other_files(&path, before)?;
        make(&path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&path, flags)?;
        // SQLite must never wait on a thread that others need: who finds it busy waits outside.
        db.busy_timeout(Duration::ZERO)?;
        db.set_prepared_statement_cache_capacity(64);
        // Without this a statement whose parameter could change its plan is compiled again for every new value.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        // A close leaves the log where it is, so that the next process need not make it again: that saves two fsync of a short run.
        // Also, the log at the path may be that of others if somebody replaced the files.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let synchronous = match config.durability {
            Durability::Normal => "NORMAL",
            Durability::Full => "FULL",
        };
        db.pragma_update(None, "synchronous", synchronous)?;
        schema::install(&db, &path)?;
        let files = Files::at(&path)?;
        if files != before {
            // Somebody may have opened the database in between by files that were removed since.
            refuse_other_files(&path, files)?;
        }
        if !files.are_there() {
            return Err(Failure::Busy);
        }
        // Only now is the file known to be ours: nothing is to appear beside somebody else's.
        make_folder(&path)?;
        if let Err(error) = files.remember(&process::folder(&path)) {
            tracing::debug!(%error, "the next client looks at all side files, too");
        }
        Ok(Database { db: Mutex::new(Some(db)), path, files, changed: OnceLock::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the files that were opened.
    pub(crate) fn files(&self) -> Files {
        self.files
    }

    /// Returns the file that is no longer at its path: others would see nothing of our grants.
    pub(crate) fn changed(&self) -> io::Result<Option<PathBuf>> {
        self.files.changed(&self.path)
    }

    /// Gives the connection up. `why` names the file and its change. Waits for nobody: [`close`](Database::close) follows.
    pub(crate) fn give_up(&self, why: &str) {
        self.changed.get_or_init(|| why.to_owned());
    }

    /// Closes a connection that was given up, and leaves the files at the paths as they are. Waits for the transaction under way.
    pub(crate) fn close(&self) {
        drop(self.db.lock().take());
    }

    /// Returns whether the connection was given up. Waits for no transaction.
    pub(crate) fn is_given_up(&self) -> bool {
        self.changed.get().is_some()
    }

    /// Makes the error of a connection that was given up. Each call names the same file.
    pub(crate) fn changed_error(&self) -> Failure {
        let why = self.changed.get().map_or("a file of the database was removed or replaced", String::as_str);
        let message = format!("{why} while it was in use; connect again, or start this program again");
        failure(ErrorKind::Configuration, message)
    }

    /// Runs `work` in a write transaction. Unless all of it succeeds nothing is changed.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.transaction(self.db.lock(), "BEGIN IMMEDIATE", work)
    }

    /// Does the same unless another thread has the connection for long, which is [`Failure::Busy`].
    pub(crate) fn try_write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.transaction(self.try_lock()?, "BEGIN IMMEDIATE", work)
    }

    /// Runs `work` on one state of the database. Needs no lock that a writer holds.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Failure> {
        self.transaction(self.db.lock(), "BEGIN", work)
    }

    /// Does the same unless another thread has the connection, as [`try_write`](Database::try_write) does.
    pub(crate) fn try_read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.transaction(self.try_lock()?, "BEGIN", work)
    }

    /// Does the same past what the connection has cached: a file that was overwritten shows its new content.
    pub(crate) fn try_read_from_file<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let db = self.try_lock()?;
        self.connection(&db)?.execute_batch("PRAGMA shrink_memory")?;
        self.transaction(db, "BEGIN", work)
    }

    /// Runs one statement, which is a transaction by itself.
    pub(crate) fn once<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let db = self.db.lock();
        Ok(work(self.connection(&db)?)?)
    }

    /// Threads that commit one short transaction after another must not make each call fail, so it tries for up to [`PATIENCE`].
    fn try_lock(&self) -> Result<MutexGuard<'_, Option<Connection>>, Failure> {
        let start = Instant::now();
        loop {
            match self.db.try_lock() {
                Some(db) => return Ok(db),
                None if start.elapsed() > PATIENCE => return Err(Failure::Busy),
                None => std::thread::sleep(PATIENCE / 100),
            }
        }
    }

    fn transaction<T>(
        &self,
        db: MutexGuard<'_, Option<Connection>>,
        begin: &str,
        work: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        transaction(self.connection(&db)?, begin, work)
    }

    fn connection<'a>(&self, db: &'a Option<Connection>) -> Result<&'a Connection, Failure> {
        // A waiter that is woken because the connection was given up may ask before it is closed.
        db.as_ref().filter(|_| !self.is_given_up()).ok_or_else(|| self.changed_error())
    }
}

fn transaction<T>(
    db: &Connection,
    begin: &str,
    work: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    db.prepare_cached(begin)?.execute([])?;
    let undo = Undo(db);
    let value = work(db)?;
    db.prepare_cached("COMMIT")?.execute([])?;
    std::mem::forget(undo);
    Ok(value)
}

/// Fails if a living client has the database open by other files than these, and tells it to look at them.
fn refuse_other_files(path: &Path, files: Files) -> Result<(), Failure> {
    let folder = process::folder(path);
    if files.are_known(&folder) {
        return Ok(());
    }
    let clients_of_other_files = heartbeat_file::clients_of_other_files(&folder, files.digest())?;
    for key in &clients_of_other_files {
        notify_fifo::send(&folder, *key, Notice::Files);
    }
    if clients_of_other_files.is_empty() {
        Ok(())
    } else {
        Err(Failure::OtherFiles(clients_of_other_files.len()))
    }
}

/// Rolls back unless forgotten: after an error, and after a panic, nothing is half done and the write lock is free.
struct Undo<'a>(&'a Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // Some errors have rolled back already; then there is nothing to do.
        if !self.0.is_autocommit()
            && let Err(error) = self.0.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "a transaction could not be rolled back");
        }
    }
}

/// Looks at the file system, and returns the absolute path.
fn find(config: &Config) -> Result<PathBuf, Failure> {
    let parent = match config.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = match parent.canonicalize() {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(cannot_make(&config.path, error));
        }
        Err(_) => {
            return Err(failure(
                ErrorKind::Configuration,
                format!(
                    "the folder of {} does not exist; create it, or choose another",
                    config.path.display()
                ),
            ));
        }
    };
    let Some(name) = config.path.file_name() else {
        return Err(failure(
            ErrorKind::Configuration,
            format!("{} names no file; name one in it", config.path.display()),
        ));
    };
    let path = match parent.join(name).canonicalize() {
        // A symbolic link: the side files must lie beside the file that everybody means.
        Ok(path) => path,
        Err(_) => parent.join(name),
    };
    let place = path.parent().unwrap_or(&parent);
    match filesystem::check(place, config.trusted).map_err(io::Error::from)? {
        None => {}
        Some(Refusal::Network(kind)) => {
            return Err(failure(
                ErrorKind::Configuration,
                format!(
                    "{} lies on {kind}, where locks do not hold between machines; use a local disk, or an engine with a server",
                    path.display()
                ),
            ));
        }
        Some(Refusal::Fuse) => {
            return Err(failure(
                ErrorKind::Configuration,
                format!(
                    "{} lies on a FUSE file system, which may reach over a network; use a local disk, or add \
                     ?filesystem=trusted if only this machine uses it",
                    path.display()
                ),
            ));
        }
    }
    Ok(path)
}

/// Makes the file, private, unless it is there.
fn make(path: &Path) -> Result<(), Failure> {
    // Only a file that did not exist is opened here: closing a descriptor of a database in use would drop its locks.
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(cannot_make(path, e)),
    }
    let there = std::fs::symlink_metadata(path)?;
    if !there.is_file() {
        let message = format!("{} is no regular file; name a file for the locks", path.display());
        return Err(failure(ErrorKind::Configuration, message));
    }
    if there.nlink() > 1 {
        return Err(failure(
            ErrorKind::Configuration,
            format!(
                "{} has {} names (hard links), and locks taken under one do not hold under another; remove all but one",
                path.display(),
                there.nlink()
            ),
        ));
    }
    Ok(())
}

/// Makes the folder of side files: its owner alone may write there, for who can remove a side file can break a lock.
fn make_folder(database: &Path) -> Result<(), Failure> {
    let folder = process::folder(database);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(cannot_make(&folder, e)),
    }
    let there = std::fs::symlink_metadata(&folder)?;
    if !there.is_dir() || there.mode() & 0o022 != 0 {
        return Err(failure(
            ErrorKind::Configuration,
            format!("{} must be a folder that only its owner can write: chmod 700", folder.display()),
        ));
    }
    if there.uid() != nix::unistd::geteuid().as_raw() {
        return Err(failure(
            ErrorKind::Denied,
            format!(
                "{} belongs to another user (uid {}): processes of one user share a database; run as that user, or use \
                 a database of your own",
                folder.display(),
                there.uid()
            ),
        ));
    }
    Ok(())
}

fn cannot_make(path: &Path, error: io::Error) -> Failure {
    let shown = path.display();
    let (kind, message) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Denied,
            format!("{shown} cannot be made: you may not write there; choose another place"),
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            ErrorKind::Configuration,
            format!("{shown} cannot be made: the disk is read-only; choose another place"),
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Configuration, format!("{shown} cannot be made: the disk is full; free some space"))
        }
        io::ErrorKind::FileTooLarge => error::too_large(&shown),
        _ => (ErrorKind::Configuration, format!("{shown} cannot be made; look at the cause")),
    };
    Failure::Error(Error::new(kind, message).on(ENGINE).because(error))
}

fn failure(kind: ErrorKind, message: String) -> Failure {
    Failure::Error(Error::new(kind, message).on(ENGINE))
}

#[cfg(test)]
mod tests;
