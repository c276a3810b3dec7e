//! How the processes of one machine see each other without the database: each has files in one folder beside it.

use std::path::{Path, PathBuf};

pub(crate) mod eviction_file;
pub(crate) mod heartbeat_file;
pub(crate) mod inotify;
pub(crate) mod liveness;
pub(crate) mod notify_fifo;

/// Returns the folder of these files.
pub(crate) fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-fencepost");
    PathBuf::from(name)
}
