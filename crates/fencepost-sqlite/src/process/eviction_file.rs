//! The file by which an evictor tells a process that one of its claims was evicted: `<key>.evicted`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// At most this many bytes of the file are read.
const MAX_BYTES: u64 = 1 << 20;

/// Makes the file by which a process is marked to look at its rows. `line` is what it says: the rows decide who is evicted.
pub(crate) fn write(path: &Path, line: &str) -> io::Result<()> {
    let mut options = File::options();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)?.write_all(line.as_bytes())
}

/// Returns what a summons says; nothing if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut said = Vec::new();
    let read = options.open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut said));
    read.map(|_| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default()
}

/// A summons' line: the claim, then who evicts it and why.
pub(crate) fn line(id: &[u8; 16], by: &str) -> String {
    format!("{:032x} {by}\n", u128::from_be_bytes(*id))
}

/// Returns who evicts this claim and why, as the summons says it.
pub(crate) fn reason_of<'a>(text: &'a str, id: &[u8; 16]) -> &'a str {
    let id = format!("{:032x} ", u128::from_be_bytes(*id));
    text.lines().find_map(|line| line.strip_prefix(&id)).unwrap_or_default()
}
