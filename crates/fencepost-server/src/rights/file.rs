//! Reads and writes the file of access tokens.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fencepost_core::{Error, ErrorKind, Result};
use rustix::fs::OFlags;

use crate::rights::entry::Entry;

/// How long an access token must be missing from a file that may just be written before it is revoked.
pub(crate) const RESTED: Duration = Duration::from_secs(1);

/// The bit of a file's mode that lets every user write it.
const OTHERS_WRITE: u32 = 0o002;

/// A version of the file: what tells a changed file from the one that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    /// When its text was written last. A program can set this time to any other.
    modified: Duration,
    /// When anything of it was changed last. No program can set this time.
    changed: Duration,
}

impl Version {
    /// Looks at the file. `None`: there is none.
    pub(crate) fn of(path: &Path) -> Option<Version> {
        fs::metadata(path).ok().map(|file| Version::from(&file))
    }

    /// Returns whether nothing of the file was changed within [`RESTED`]. Only then a later change is sure to have another time, because
    /// some file systems count in seconds.
    pub(crate) fn has_rested(&self) -> bool {
        since(self.changed) >= RESTED
    }

    /// Returns whether the text is whole: nobody wrote it within [`RESTED`], or the file has taken the place of `before` by a rename. A
    /// rename changes the file, but not its text.
    pub(crate) fn is_whole(&self, before: Option<&Version>) -> bool {
        let is_another = |before: &Version| (before.device, before.inode) != (self.device, self.inode);
        since(self.modified) >= RESTED || before.is_some_and(is_another) && self.changed > self.modified
    }
}

impl From<&Metadata> for Version {
    fn from(file: &Metadata) -> Version {
        let time = |seconds: i64, nanos: i64| {
            Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
        };
        Version {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: time(file.mtime(), file.mtime_nsec()),
            changed: time(file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Returns how long ago this time was. A time in the future is one of an earlier clock, so it counts as long ago.
fn since(time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.checked_sub(time).unwrap_or(Duration::MAX)
}

/// Reads the text of the file, and the version that has it.
///
/// # Errors
/// [`is_configuration`](Error::is_configuration) if it cannot be read, or every user may write it.
pub(crate) fn read(path: &Path) -> Result<(Version, String)> {
    let failed = |error| configuration(path, "cannot be read").because(error);
    // Without waiting: to open a pipe waits for its writer, and so would the service.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    // Before the text: a file that is changed meanwhile is read again.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        // What was read from a pipe is gone when the service looks again.
        return Err(configuration(
            path,
            "is no regular file; write the access tokens to a file, and name that",
        ));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(configuration(path, "can be written by every user of this machine; run chmod o-w on it"));
    }
    Ok((Version::from(&metadata), io::read_to_string(file).map_err(failed)?))
}

/// Reads the lines of a file.
///
/// # Errors
/// [`is_configuration`](Error::is_configuration): the number of the line, and its fault.
pub(crate) fn entries(path: &Path, text: &str) -> Result<Vec<Entry>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let entry = |(number, line): (usize, &str)| {
        let wrong =
            |error| configuration(path, &format!("has a fault in line {}", number + 1)).because(error);
        Entry::from_line(line).map_err(wrong)
    };
    lines.map(entry).collect()
}

/// Changes the lines of a file, which may not exist yet. A new file takes its place, so that a service never reads a part of it.
///
/// # Errors
/// Those of `edit`. [`is_configuration`](Error::is_configuration) if the file has a fault or cannot be written.
pub(crate) fn change(path: &Path, edit: impl FnOnce(&mut Vec<String>) -> Result<()>) -> Result<()> {
    // A link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut new = path.clone().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    let failed = |error| configuration(&path, "cannot be written").because(error);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(|error| {
            if error.kind() != Io::AlreadyExists {
                return failed(error);
            }
            let what = format!("is changed by another command; if there is none, delete {}", new.display());
            configuration(&path, &what)
        })?;
    let write = || {
        let mut lines = Vec::new();
        if path.exists() {
            let (_, text) = read(&path)?;
            entries(&path, &text)?;
            lines.extend(text.lines().map(str::to_owned));
            let old = fs::metadata(&path).map_err(failed)?;
            fchown(&file, Some(old.uid()), Some(old.gid())).map_err(failed)?;
            file.set_permissions(old.permissions()).map_err(failed)?;
        }
        edit(&mut lines)?;
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn configuration(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("the file of access tokens {} {what}", path.display()))
}
