//! The three files of an open database, each known by device and inode.
//!
//! While any process has the database open, SQLite neither removes nor replaces the file, its log (`-wal`) or the log's index
//! (`-shm`): checkpoints, `VACUUM` and the close of other connections keep all three. Another number at a path therefore says
//! that somebody removed or replaced that file, and that the next process to open the database sees none of our grants.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::process::heartbeat_file::fnv;

/// How the paths end: the database, its log, the log's index.
const ENDS: [&str; 3] = ["", "-wal", "-shm"];

/// The file in the folder of side files that holds the digest of the last files that a client has opened.
const KNOWN: &str = "files";

/// Device and inode of each file, where there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Files([Option<(u64, u64)>; 3]);

impl Files {
    /// Returns the files that are at the paths now.
    pub(crate) fn at(database: &Path) -> io::Result<Files> {
        let mut files = [None; 3];
        for (file, end) in files.iter_mut().zip(ENDS) {
            *file = match std::fs::symlink_metadata(path(database, end)) {
                Ok(there) => Some((there.dev(), there.ino())),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e),
            };
        }
        Ok(Files(files))
    }

    /// Returns device and inode of the log's index, by whose locks SQLite admits one writer.
    pub(crate) fn index(self) -> Option<(u64, u64)> {
        self.0[2]
    }

    /// Returns whether all three are there.
    pub(crate) fn are_there(self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// Returns the path of the first file that is another one now.
    pub(crate) fn changed(self, database: &Path) -> io::Result<Option<PathBuf>> {
        let now = Files::at(database)?;
        let changed = ENDS.iter().zip(self.0.iter().zip(&now.0)).find(|(_, (then, now))| then != now);
        Ok(changed.map(|(end, _)| path(database, end)))
    }

    /// Returns whether a client of these files has found no living client of others. A later one of others has seen that itself.
    pub(crate) fn are_known(self, folder: &Path) -> bool {
        std::fs::read(folder.join(KNOWN)).is_ok_and(|known| known == self.digest().to_le_bytes())
    }

    /// Writes down that no client of other files lives, so that not every client has to look at all side files.
    pub(crate) fn remember(self, folder: &Path) -> io::Result<()> {
        if self.are_known(folder) {
            return Ok(());
        }
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(folder.join(KNOWN))?.write_all_at(&self.digest().to_le_bytes(), 0)
    }

    /// Returns all numbers in one, for the side file. It is never zero.
    pub(crate) fn digest(self) -> u64 {
        let numbers = self.0.iter().flat_map(|file| file.map_or([0; 2], |(dev, ino)| [dev, ino]));
        let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        fnv(&bytes).max(1)
    }
}

/// Returns the size of the largest of the three.
pub(crate) fn largest(database: &Path) -> u64 {
    ENDS.iter().filter_map(|end| Some(std::fs::metadata(path(database, end)).ok()?.len())).max().unwrap_or(0)
}

fn path(database: &Path, end: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(end);
    path.into()
}
