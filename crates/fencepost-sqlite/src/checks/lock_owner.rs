//! The process that writes to the database.

use std::fmt;
use std::fs;

use nix::sys::stat::{major, minor};

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

/// How often the list of locks is read until it has the lock.
const LOOKS: u32 = 5;

/// Looks the lock up in `/proc/locks`, by device and inode of the `-shm` file. Opening the file to request with `F_GETLK` would drop our own
/// locks on it at the close.
pub(crate) fn find((device, inode): (u64, u64)) -> Option<LockOwner> {
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    // The list is read page by page, and a lock that moves to an earlier page meanwhile, because others have gone, is missing.
    let look = |_| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        write_lock_pid(&locks, &device, &inode.to_string())
    };
    let pid = (0..LOOKS).find_map(look)?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let stopped = status.lines().any(|line| line.starts_with("State:") && line.contains("stopped"));
    Some(LockOwner { pid, program, stopped })
}

/// Returns the pid of the process with the write lock of that file. A file of another device can have the same inode. Its lock is taken
/// for that of the file only if both devices are anonymous and no lock of the file has this device, because Btrfs and overlayfs show `stat`
/// another anonymous device than `/proc/locks`. Each connection has a read lock on the file as long as it is open, so elsewhere a lock of
/// the file has this device.
fn write_lock_pid(locks: &str, device: &str, inode: &str) -> Option<u32> {
    let locks = locks.lines().filter_map(lock).filter(|lock| lock.file.1 == inode);
    let (same_device, others): (Vec<_>, Vec<_>) = locks.partition(|lock| lock.file.0 == device);
    let is_anonymous = |device: &str| device.starts_with("00:");
    let found = if same_device.is_empty() && is_anonymous(device) { others } else { same_device };
    let mut found = found.into_iter().filter(|lock| lock.file.0 == device || is_anonymous(lock.file.0));
    found.find_map(|lock| lock.writer)
}

/// A line of `/proc/locks`.
struct Lock<'a> {
    /// Device and inode.
    file: (&'a str, &'a str),
    /// The process, if it is a write lock of SQLite.
    writer: Option<u32>,
}

/// Reads a line such as `1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120`.
fn lock(line: &str) -> Option<Lock<'_>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "POSIX", _, kind, pid, file, from, to] = fields[..] else { return None };
    let covers =
        from.parse::<u64>().ok()? <= 120 && to.parse::<u64>().is_ok_and(|to| to >= 120) || from == WRITE_BYTE;
    let writer = pid.parse().ok().filter(|pid| *pid != 0 && kind == "WRITE" && covers);
    Some(Lock { file: file.rsplit_once(':')?, writer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_lock_is_found_among_others() {
        let line = |rest: &str| write_lock_pid(rest, "fe:00", "5678");
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120"), Some(1234));
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 127"), Some(1234));
        assert_eq!(line("1: POSIX  ADVISORY  READ 1234 fe:00:5678 124 124"), None);
        assert_eq!(line("1: POSIX  ADVISORY  WRITE 1234 fe:00:5679 120 120"), None);
        assert_eq!(line("1: OFDLCK ADVISORY  WRITE -1 fe:00:5678 0 EOF"), None);
        assert_eq!(line("1: -> POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120"), None);
    }

    /// The error asks to end the process that it names.
    #[test]
    fn a_file_of_another_device_with_the_same_inode_is_told_apart() {
        let other = "1: POSIX  ADVISORY  WRITE 1 fe:01:5678 120 120";
        let both = format!("{other}\n2: POSIX  ADVISORY  WRITE 2 fe:00:5678 120 120");
        assert_eq!(write_lock_pid(&both, "fe:00", "5678"), Some(2));
        assert_eq!(write_lock_pid(other, "fe:00", "5678"), None);
        assert_eq!(write_lock_pid(other, "00:31", "5678"), None);
        let anonymous = "1: POSIX  ADVISORY  WRITE 1 00:2f:5678 120 120";
        assert_eq!(write_lock_pid(anonymous, "00:31", "5678"), Some(1), "Btrfs");
        assert_eq!(write_lock_pid(&format!("{other}\n{anonymous}"), "00:31", "5678"), Some(1));
        assert_eq!(write_lock_pid(anonymous, "fe:00", "5678"), None);
        let own = "2: POSIX  ADVISORY  READ  2 00:31:5678 128 128";
        let both = format!("{anonymous}\n{own}");
        assert_eq!(
            write_lock_pid(&both, "00:31", "5678"),
            None,
            "tmpfs, whose locks show the device of stat"
        );
    }
}
