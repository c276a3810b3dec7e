//! A folder that is removed with its owner.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A fresh folder under the system's temporary folder, removed on drop.
#[derive(Debug)]
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// Makes a folder whose name begins with `fencepost-` and `what`.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(what: &str) -> io::Result<TempDir> {
        TempDir::under(&std::env::temp_dir(), what)
    }

    /// Makes the same folder under another one.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn under(parent: &Path, what: &str) -> io::Result<TempDir> {
        // Processes of another user read in it, so it has the mode of a folder that `mkdir` makes.
        let readable = Permissions::from_mode(0o777);
        let prefix = format!("fencepost-{what}-");
        tempfile::Builder::new().prefix(&prefix).permissions(readable).tempdir_in(parent).map(TempDir)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_as_mkdir_makes_it_and_removed_with_its_owner() {
        let outer = TempDir::new("outer").unwrap();
        let made = outer.path().join("made");
        std::fs::create_dir(&made).unwrap();
        let inner = TempDir::under(outer.path(), "inner").unwrap();
        let name = inner.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("fencepost-inner-"), "{name}");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(inner.path()), mode(&made));
        std::fs::write(inner.path().join("file"), "content").unwrap();
        let (path, other) = (inner.path().to_owned(), outer.path().to_owned());
        drop(inner);
        assert!(!path.exists() && other.exists());
    }
}
