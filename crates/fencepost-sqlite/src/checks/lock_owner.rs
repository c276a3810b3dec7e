//! The process that writes to the database.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process that has the write lock.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct LockOwner {
    pid: u32,
    program: Option<String>,
    stopped: bool,
}

impl fmt::Display for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if let Some(program) = &self.program {
            write!(f, " ({program})")?;
        }
        if self.stopped {
            write!(f, ", which is stopped,")?;
        }
        Ok(())
    }
}

/// Byte of the `-shm` file that SQLite's write lock in WAL mode stands for (`WAL_WRITE_LOCK`, "WAL-mode File Format" 2.3.1).
const WRITE_BYTE: &str = "120";

/// Looks the lock up in `/proc/locks`. Opening the file to request with `F_GETLK` would drop our own locks on it at the close.
pub(crate) fn find(database: &Path) -> Option<LockOwner> {
    let mut shm = database.as_os_str().to_owned();
    shm.push("-shm");
    let inode = fs::metadata(shm).ok()?.ino().to_string();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| write_lock_pid(line, &inode))?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let stopped = status.lines().any(|line| line.starts_with("State:") && line.contains("stopped"));
    Some(LockOwner { pid, program, stopped })
}

/// `1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120`: the pid, if it is the write lock of that file.
fn write_lock_pid(line: &str, inode: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "POSIX", _, "WRITE", pid, file, from, to] = fields[..] else { return None };
    let covers =
        from.parse::<u64>().ok()? <= 120 && to.parse::<u64>().is_ok_and(|to| to >= 120) || from == WRITE_BYTE;
    (covers && file.rsplit(':').next() == Some(inode))
        .then(|| pid.parse().ok())
        .flatten()
        .filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_lock_is_found_among_others() {
        let line = |rest: &str| write_lock_pid(rest, "5678");
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120"), Some(1234));
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 127"), Some(1234));
        assert_eq!(line("1: POSIX  ADVISORY  READ 1234 fe:00:5678 124 124"), None);
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5679 120 120"), None);
        assert_eq!(line("1: OFDLCK ADVISORY  WRITE -1 fe:00:5678 0 EOF"), None);
        assert_eq!(line("1: -> POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120"), None);
    }
}
