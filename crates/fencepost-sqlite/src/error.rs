//! Errors: the failure, its cause, and the remedy.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind};
use rusqlite::{ErrorCode, ffi};

use crate::checks::lock_owner;
use crate::db::files::{self, Files};
use crate::process;

/// A failure within the engine, before it is known what was being done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another process is writing. To be asked again soon.
    Busy,
    /// Other clients have the database open by files that are no longer at their paths. To be asked again soon.
    OtherFiles(usize),
    /// SQLite's own.
    Sql(rusqlite::Error),
    /// A side file's, or a bell's.
    File(io::Error),
    /// Already worded.
    Error(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Failure::Busy,
            _ => Failure::Sql(error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::File(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "sqlite";

impl Failure {
    /// Returns whether the file is no longer the database that it was: somebody has truncated or overwritten it.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            // There is no such table.
            Failure::Sql(rusqlite::Error::SqlInputError { .. }) => true,
            Failure::Sql(rusqlite::Error::SqliteFailure(error, _)) => {
                matches!(error.code, ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
                    || [ffi::SQLITE_ERROR, ffi::SQLITE_IOERR_SHORT_READ].contains(&error.extended_code)
            }
            _ => false,
        }
    }

    /// Returns whether the database could not be read beside another process, for which SQLite has waited for 10 s.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Failure::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::FileLockingProtocolFailed))
    }

    /// Returns whether a transaction may be in the log although it failed: whoever reads the log anew then finds it. All others have
    /// changed nothing.
    fn may_be_logged(&self) -> bool {
        // A transaction of which a part could not be read or written is not complete in the log.
        let harmless = [ffi::SQLITE_IOERR_READ, ffi::SQLITE_IOERR_SHORT_READ, ffi::SQLITE_IOERR_WRITE];
        match self {
            Failure::Sql(rusqlite::Error::SqliteFailure(error, _)) => {
                error.code == ErrorCode::SystemIoFailure && !harmless.contains(&error.extended_code)
            }
            _ => false,
        }
    }

    /// The error for the caller; `path` is the database.
    pub(crate) fn at(self, path: &Path) -> Error {
        let (shown, may_be_logged) = (path.display(), self.may_be_logged());
        let error = match self {
            Failure::Error(error) => error,
            Failure::Busy => Error::new(
                ErrorKind::Unreachable,
                format!("{shown} is being written by another process; try again"),
            ),
            Failure::OtherFiles(n) => Error::new(
                ErrorKind::Unreachable,
                format!(
                    "{shown}, its -wal or its -shm was removed or replaced while {n} other clients use it; their locks are lost, \
                     and no lock is granted before their programs have ended: wait for them, or end them"
                ),
            ),
            Failure::File(error) => file_failure(error, path),
            Failure::Sql(error) => sql_failure(error, path),
        };
        if may_be_logged { error.on(ENGINE).unknown() } else { error.on(ENGINE) }
    }
}

fn file_failure(error: io::Error, path: &Path) -> Error {
    let folder = process::folder(path);
    let shown = folder.display();
    let (kind, message) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Denied,
            format!(
                "{shown} belongs to another user; all who share these locks run as one user, or each has a database"
            ),
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            ErrorKind::Configuration,
            format!("{shown} cannot be written; choose a database on a writable disk"),
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Configuration, format!("the disk of {shown} is full; free some space"))
        }
        io::ErrorKind::FileTooLarge => too_large(&shown),
        _ => (
            ErrorKind::Unreachable,
            format!(
                "the files in {shown}, by which processes see each other, do not work; look at the cause"
            ),
        ),
    };
    Error::new(kind, message).because(error)
}

fn sql_failure(error: rusqlite::Error, path: &Path) -> Error {
    let shown = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Configuration, format!("the disk of {shown} is full; free some space"))
        }
        Some(ErrorCode::ReadOnly) => (
            ErrorKind::Configuration,
            format!(
                "{shown} cannot be written; make the file and its folder writable, or choose another database"
            ),
        ),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            ErrorKind::Configuration,
            format!(
                "{shown} cannot be opened; make sure that its folder exists and that you may write there"
            ),
        ),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Configuration,
            format!("{shown} is not a sound SQLite database; name another file, or move this one away"),
        ),
        // SQLite has waited for 10 s by then, for a process that is stopped while it tells others of its commit, for example.
        Some(ErrorCode::FileLockingProtocolFailed) => (
            ErrorKind::Unreachable,
            format!(
                "{shown} could not be read for 10 s beside another process; look whether one that uses it is stopped"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) if near_the_limit(path) => too_large(&shown),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unreachable,
            format!("the disk of {shown} failed; look at the cause and the kernel's log"),
        ),
        _ => (ErrorKind::Internal, format!("SQLite refused a request to {shown}")),
    };
    Error::new(kind, message).because(error)
}

/// Returns the error for a file that may not grow.
pub(crate) fn too_large(shown: &dyn Display) -> (ErrorKind, String) {
    let message =
        format!("the file size limit of this process is too small for {shown}; raise it with ulimit -f");
    (ErrorKind::Configuration, message)
}

/// Returns whether a file of the database is about as large as this process may write: SQLite's error does not tell that from a
/// disk that fails.
fn near_the_limit(database: &Path) -> bool {
    const NEAR: u64 = 1 << 16;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max file size")?.split_whitespace().next());
    // "unlimited" is no number.
    let limit = limit.and_then(|limit| limit.parse::<u64>().ok());
    limit.is_some_and(|limit| files::largest(database).saturating_add(NEAR) > limit)
}

/// Somebody has kept the write lock for too long. Names the process if the kernel does.
pub(crate) fn blocked(path: &Path, opened: Files, waited: Duration) -> Error {
    // By the file that was opened, because the path may name another one by now.
    let owner = opened.index().and_then(lock_owner::find);
    let who = owner.map_or_else(|| "by another process".to_owned(), |owner| format!("by {owner}"));
    let message = format!(
        "{} has been locked {who} for {:.1} s in the middle of a write; let that process go on, or end it",
        path.display(),
        waited.as_secs_f64()
    );
    Error::new(ErrorKind::Unreachable, message).on(ENGINE)
}

#[cfg(test)]
mod tests {
    use fencepost_core::Effect;

    use super::*;

    /// The path may name another file by now, whose writer holds up nobody here.
    #[test]
    fn the_process_that_writes_to_a_replaced_database_is_named() {
        let test = crate::testing::TestDb::new();
        let writer = rusqlite::Connection::open(test.database.path()).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        let path = test.database.path();
        let shm = path.with_extension("db-shm");
        std::fs::rename(&shm, shm.with_extension("away")).unwrap();
        std::fs::write(&shm, "").unwrap();
        let error = blocked(path, test.database.files(), Duration::from_secs(10)).to_string();
        assert!(error.contains(&format!("by process {}", std::process::id())), "{error}");
    }

    /// A claim tries again then.
    #[test]
    fn a_database_that_cannot_be_read_beside_a_stopped_process_is_unreachable() {
        let code = ffi::Error::new(ffi::SQLITE_PROTOCOL);
        let failure = Failure::from(rusqlite::Error::SqliteFailure(code, None));
        assert!(failure.is_unreadable());
        assert!(failure.at(Path::new("locks.db")).is_unreachable());
    }

    #[test]
    fn only_a_transaction_that_may_be_in_the_log_may_have_taken_effect() {
        for (code, effect) in [
            (ffi::SQLITE_IOERR_FSYNC, Effect::Unknown),
            (ffi::SQLITE_IOERR_SHMMAP, Effect::Unknown),
            (ffi::SQLITE_IOERR_WRITE, Effect::None),
            (ffi::SQLITE_FULL, Effect::None),
            (ffi::SQLITE_READONLY, Effect::None),
        ] {
            let failure = Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(failure.at(Path::new("locks.db")).effect(), effect, "{code}");
        }
    }
}
