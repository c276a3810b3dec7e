//! Reads and writes the file of access tokens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fencepost_core::{Error, ErrorKind, Result};

use crate::rights::entry::Entry;

/// How long a file must have rested before access tokens that are gone from it are revoked.
const RESTED: Duration = Duration::from_secs(1);

/// The bit of a file's mode that lets every user write it.
const OTHERS_WRITE: u32 = 0o002;

/// Tells a changed file from the one that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Seen {
    /// Looks at the file. `None`: there is none.
    pub(crate) fn of(path: &Path) -> Option<Seen> {
        let file = fs::metadata(path).ok()?;
        let modified = file.modified().ok();
        Some(Seen { device: file.dev(), inode: file.ino(), bytes: file.size(), modified })
    }

    /// Returns whether the file was written within [`RESTED`].
    pub(crate) fn is_fresh(&self) -> bool {
        self.modified.and_then(|time| time.elapsed().ok()).is_some_and(|age| age < RESTED)
    }
}

/// Reads the text of the file.
///
/// # Errors
/// [`is_configuration`](Error::is_configuration) if it cannot be read, or every user may write it.
pub(crate) fn text(path: &Path) -> Result<String> {
    let failed = |error| configuration(path, "cannot be read").because(error);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.mode() & OTHERS_WRITE != 0 {
        return Err(configuration(path, "can be written by every user of this machine; run chmod o-w on it"));
    }
    io::read_to_string(file).map_err(failed)
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
            let text = text(&path)?;
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
