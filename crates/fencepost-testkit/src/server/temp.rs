//! A folder that is removed with its owner.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh folder under the system's temporary folder, removed on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes a folder whose name begins with `fencepost-` and `what`.
    ///
    /// # Errors
    /// What the system answers.
    pub fn new(what: &str) -> io::Result<TempDir> {
        TempDir::under(&std::env::temp_dir(), what)
    }

    /// The same under another folder.
    ///
    /// # Errors
    /// What the system answers.
    pub fn under(parent: &Path, what: &str) -> io::Result<TempDir> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("fencepost-{what}-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(TempDir(path)),
                // Left by a killed process that had our id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nothing sensible can be done about a folder that resists, least of all while a test panics.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
