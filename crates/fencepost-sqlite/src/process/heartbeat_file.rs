//! The side file: how a process shows that it lives, and renews its leases without the database.
//!
//! Each client has one file beside the database, `<database>-fencepost/<key>`. The client holds an *open-description*
//! lock on it (`F_OFD_SETLK`), which the kernel drops with the last descriptor of that description: when the process
//! ends in whatever way, and every child that inherited the descriptor too. POSIX record locks would fall as soon as
//! *any* descriptor of the file is closed by the process, so they are never used here.
//!
//! The content of the file is the time of the last renewal. A renewal is one `pwrite`, so a process that was stopped in
//! the middle of a database transaction, and thus blocks every writer, costs nobody a lease.
//!
//! ```text
//! offset  0  magic, 8 bytes
//!         8  boot id of the kernel, 16 bytes
//!        24  renewed_at: CLOCK_BOOTTIME in nanoseconds, 8 bytes little endian
//!        32  FNV-1a of the bytes before it, 8 bytes: a reader beside a writer could see half of a renewal
//!        64  "over" once every pinned claim of this process is finished; written by another process, so apart
//!        72  the files that the client has open: their numbers in one, 8 bytes
//! ```
//!
//! A second lock, on a byte far behind the end, belongs to a description of its own. It says that the client itself lives and has the
//! database open, because its descriptor is close-on-exec and handed to no program. A child that is forked without `exec` has both
//! descriptors until it ends.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::uio::{pread, pwrite};

const MAGIC: &[u8; 8] = b"fencep1\n";
const RECORD: usize = 40;
const OVER_AT: usize = 64;
const OVER: &[u8; 8] = b"over\0\0\0\0";
const FILES_AT: usize = 72;
const SIZE: usize = 80;

/// The locked range: start and length. Length 0 reaches to the end of every file.
type Range = (i64, i64);
const ALIVE: Range = (0, 1 << 40);
const OPEN: Range = (1 << 40, 1);
const WHOLE: Range = (0, 0);

/// Names a client in the database and in the folder of side files.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(pub(crate) [u8; 16]);

impl ClientKey {
    pub(crate) fn fresh() -> io::Result<ClientKey> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no random bytes: {e}")))?;
        Ok(ClientKey(bytes))
    }

    /// Half of it, as a number.
    pub(crate) fn number(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Reads the 32 hex digits of a file name.
    pub(crate) fn parse(name: &str) -> Option<ClientKey> {
        let digits = (name.len() == 32).then_some(name)?;
        (digits.bytes().all(|b| b.is_ascii_hexdigit())).then_some(())?;
        u128::from_str_radix(digits, 16).ok().map(|n| ClientKey(n.to_be_bytes()))
    }
}

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Which start of the kernel a CLOCK_BOOTTIME belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BootId(pub(crate) [u8; 16]);

impl BootId {
    pub(crate) fn read() -> io::Result<BootId> {
        let path = "/proc/sys/kernel/random/boot_id";
        let text = std::fs::read_to_string(path)
            .map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}; is /proc mounted?")))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let key =
            ClientKey::parse(&digits).ok_or_else(|| io::Error::other(format!("{path}: not a boot id")))?;
        Ok(BootId(key.0))
    }
}

/// The content of a process's side file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessState {
    /// Somebody holds its lock.
    Locked { renewed_at: u64, over: bool },
    /// Nobody holds its lock: the process and all who inherited the descriptor are gone.
    Unlocked,
    /// No such file, or not one of ours: nothing is known.
    Unknown,
}

/// The own side file.
pub(crate) struct HeartbeatFile {
    folder: PathBuf,
    key: ClientKey,
    boot: BootId,
    files: u64,
    /// The locked descriptions. The mutex also orders renewals, so that none writes an older time over a newer one.
    file: Mutex<NamedFile>,
    renewed_at: AtomicU64,
    remade: AtomicU64,
}

impl HeartbeatFile {
    /// Creates the file, locked and renewed at `now`, under its final name in one step.
    /// `files` are those that the client has open.
    pub(crate) fn create(
        folder: &Path,
        key: ClientKey,
        boot: BootId,
        files: u64,
        now: u64,
    ) -> io::Result<HeartbeatFile> {
        let file = Mutex::new(create_locked(folder, key, boot, files, now)?);
        Ok(HeartbeatFile {
            folder: folder.to_owned(),
            key,
            boot,
            files,
            file,
            renewed_at: AtomicU64::new(now),
            remade: AtomicU64::new(0),
        })
    }

    pub(crate) fn key(&self) -> ClientKey {
        self.key
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(self.key.to_string())
    }

    /// The time that others read in the file now.
    pub(crate) fn renewed_at(&self) -> u64 {
        self.renewed_at.load(Ordering::Acquire)
    }

    /// Returns how many times the file was made again because somebody had removed it.
    pub(crate) fn remade(&self) -> u64 {
        self.remade.load(Ordering::Acquire)
    }

    /// Renews at `now`, a time noted *before* this call, and returns the time that stands in the file: `now`, or a later
    /// one that another task wrote meanwhile.
    ///
    /// The path must still name this file, else others see nothing of the renewal: where somebody removed it, it is made
    /// again. An error means that nothing is confirmed.
    pub(crate) fn renew(&self, now: u64) -> io::Result<u64> {
        let mut file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        let now = now.max(self.renewed_at());
        write_all_at(&file.file, &record(self.boot, now), 0)?;
        if !file.is_at(&self.path())? {
            tracing::warn!(path = %self.path().display(), "the side file was removed; making it again");
            *file = create_locked(&self.folder, self.key, self.boot, self.files, now)?;
            self.remade.fetch_add(1, Ordering::AcqRel);
        }
        self.renewed_at.store(now, Ordering::Release);
        Ok(now)
    }

    /// Returns whether somebody has marked the file as over.
    pub(crate) fn is_over(&self) -> io::Result<bool> {
        let file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        let mut mark = [0; OVER.len()];
        Ok(pread(&file.file, &mut mark, OVER_AT as libc::off_t)? == mark.len() && mark == *OVER)
    }

    /// Ends all that is renewed by this file, and marks it as over.
    pub(crate) fn end(&self) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        write_all_at(&file.file, &record(self.boot, 0), 0)?;
        mark_over(&self.path())
    }

    /// A second descriptor of the locked description, without close-on-exec being lifted: for a child to inherit.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        let file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        Ok(file.file.try_clone()?.into())
    }

    /// Takes the file away. The lock falls with the last descriptor.
    pub(crate) fn remove(&self) {
        let file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        if file.is_at(&self.path()).unwrap_or(false) {
            let _ = std::fs::remove_file(self.path());
        }
    }
}

/// A file that should still have its name.
struct NamedFile {
    file: File,
    /// Holds the second lock. `None`: the file is another client's.
    _open: Option<File>,
    identity: (u64, u64),
}

impl NamedFile {
    fn new(file: File, open: Option<File>) -> io::Result<NamedFile> {
        let meta = file.metadata()?;
        Ok(NamedFile { file, _open: open, identity: (meta.dev(), meta.ino()) })
    }

    /// Does `path` still name this file?
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        match std::fs::symlink_metadata(path) {
            Ok(there) => Ok((there.dev(), there.ino()) == self.identity),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// Makes a locked file with its first record and moves it into place, so that nobody ever sees it unlocked.
fn create_locked(folder: &Path, key: ClientKey, boot: BootId, files: u64, now: u64) -> io::Result<NamedFile> {
    let path = folder.join(key.to_string());
    let new = folder.join(format!("{key}.new"));
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&new)?;
    let open = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&new)?;
    if !lock(&file, ALIVE)? || !lock(&open, OPEN)? {
        return Err(io::Error::other(format!("{}: somebody else holds its lock", new.display())));
    }
    let mut bytes = [0; SIZE];
    bytes[..RECORD].copy_from_slice(&record(boot, now));
    bytes[FILES_AT..].copy_from_slice(&files.to_le_bytes());
    write_all_at(&file, &bytes, 0)?;
    std::fs::rename(&new, &path)?;
    NamedFile::new(file, Some(open))
}

/// Looks at the side file of another process.
///
/// The boot id in the file does not matter, because no lock survives a restart of the kernel: a locked file with another boot id
/// is of a process in a container that is shown a boot id of its own.
///
/// # Errors
/// When the file is there and cannot be looked at (permissions, no descriptor left): that says nothing about its process,
/// and must not be taken for its death.
pub(crate) fn state(folder: &Path, key: ClientKey) -> io::Result<ProcessState> {
    let path = folder.join(key.to_string());
    let Some(file) = open(&path)? else { return Ok(ProcessState::Unknown) };
    if !is_locked(&file, ALIVE)? {
        return Ok(ProcessState::Unlocked);
    }
    // A renewal takes less than a microsecond, so the next look is whole.
    for _ in 0..8 {
        let mut bytes = [0; FILES_AT];
        if pread(&file, &mut bytes, 0)? < RECORD || bytes[..8] != MAGIC[..] {
            return Ok(ProcessState::Unknown);
        }
        if fnv(&bytes[..32]).to_le_bytes() != bytes[32..40] {
            continue;
        }
        let renewed_at = u64::from_le_bytes(bytes[24..32].try_into().unwrap_or_default());
        return Ok(ProcessState::Locked { renewed_at, over: bytes[OVER_AT..] == OVER[..] });
    }
    Ok(ProcessState::Unknown)
}

/// Returns the clients that have the database open by other files than these: somebody removed or replaced one of them. Clients
/// whose grants are over do not count.
pub(crate) fn clients_of_other_files(folder: &Path, files: u64) -> io::Result<Vec<ClientKey>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut clients_of_other_files = Vec::new();
    for entry in entries {
        let Some(key) = entry?.file_name().to_str().and_then(ClientKey::parse) else { continue };
        let Some(file) = open(&folder.join(key.to_string()))? else { continue };
        let mut bytes = [0; SIZE];
        let whole = pread(&file, &mut bytes, 0)? == SIZE && bytes[..8] == MAGIC[..];
        let over = bytes[OVER_AT..FILES_AT] == OVER[..];
        if whole && !over && bytes[FILES_AT..] != files.to_le_bytes() && is_locked(&file, OPEN)? {
            clients_of_other_files.push(key);
        }
    }
    Ok(clients_of_other_files)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Marks the side file at `path`: whatever its process pinned is finished. Closing it wakes those who watch the file.
pub(crate) fn mark_over(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    write_all_at(&file, OVER, OVER_AT)
}

/// Removes the side file of a dead process: its lock can be taken. Call it only when no row names the process any more. With a row
/// left, a missing file would turn "dead" into "unknown".
pub(crate) fn remove_dead(path: &Path) -> io::Result<bool> {
    let options =
        File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match options {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    // The lock is held until the name is gone.
    let file = NamedFile::new(file, None)?;
    if !lock(&file.file, WHOLE)? || !file.is_at(path)? {
        return Ok(false);
    }
    std::fs::remove_file(path)?;
    Ok(true)
}

fn record(boot: BootId, renewed_at: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..24].copy_from_slice(&boot.0);
    bytes[24..32].copy_from_slice(&renewed_at.to_le_bytes());
    let sum = fnv(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn write_all_at<F: AsFd>(file: F, bytes: &[u8], at: usize) -> io::Result<()> {
    match pwrite(&file, bytes, at as libc::off_t) {
        Ok(n) if n == bytes.len() => Ok(()),
        // Overwriting bytes within one page is never short, so this is a full disk at creation.
        Ok(_) => Err(Errno::ENOSPC.into()),
        Err(e) => Err(e.into()),
    }
}

fn flock(kind: libc::c_int, (start, len): Range) -> libc::flock {
    // `l_pid` must be 0 for open-description locks.
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn lock(file: &File, range: Range) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&flock(libc::F_WRLCK, range))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn is_locked(file: &File, range: Range) -> io::Result<bool> {
    let mut probe = flock(libc::F_WRLCK, range);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut probe))?;
    Ok(libc::c_int::from(probe.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests;
