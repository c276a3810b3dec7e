//! A server whose wall clock a test can step.
//!
//! A shim is loaded before the C library. It reads a file that it maps, and adds the offset in that file to
//! the wall clock, or stops the clock at the time in that file. The well-known library for this, libfaketime,
//! looks its functions up with `dlsym`. That call allocates, and crashes a server that has its own allocator.
//! The shim asks the kernel instead, and looks nothing up.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::TempDir;

/// A demo uses it, too.
const SHIM: &str = include_str!("../../../fencepost-demo/src/clock.c");

/// Writes the shim, and a clock with no offset, into the folder, unless they are there.
pub(crate) fn prepare(dir: &Path) -> io::Result<()> {
    if dir.join("clock").exists() {
        return Ok(());
    }
    std::fs::write(dir.join("clock.so"), built()?)?;
    std::fs::write(dir.join("clock"), [0; 16])
}

/// Returns the compiled shim. Each test program compiles it once, however many servers it starts.
fn built() -> io::Result<&'static [u8]> {
    static BUILT: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| error.to_string()));
    built.as_deref().map_err(|message| io::Error::other(message.as_str()))
}

fn build() -> io::Result<Vec<u8>> {
    let dir = TempDir::new("clock")?;
    let path = dir.path();
    std::fs::write(path.join("clock.c"), SHIM)?;
    let mut compiler = Command::new("cc");
    let output =
        compiler.args(["-shared", "-fPIC", "-O1", "-o", "clock.so", "clock.c"]).current_dir(path).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("cc: {}", String::from_utf8_lossy(&output.stderr))));
    }
    std::fs::read(path.join("clock.so"))
}

/// Makes the command's clock follow the folder's file.
pub(crate) fn follow(command: &mut Command, dir: &Path) {
    command.env("LD_PRELOAD", dir.join("clock.so")).env("FENCEPOST_CLOCK", dir.join("clock"));
}

/// Gives the command a clock in the folder.
pub(crate) fn with(mut command: Command, dir: &Path) -> io::Result<Command> {
    prepare(dir)?;
    follow(&mut command, dir);
    Ok(command)
}

/// Steps the clock by this number of seconds.
pub(crate) fn step(dir: &Path, seconds: i64) -> io::Result<()> {
    let file = open(dir)?;
    let mut offset = [0; 8];
    file.read_exact_at(&mut offset, 0)?;
    // In one write and in place, because the server has the file mapped.
    file.write_all_at(&(i64::from_ne_bytes(offset) + seconds).to_ne_bytes(), 0)
}

/// Stops the clock at `micros`, in microseconds since 1970.
pub(crate) fn still(dir: &Path, micros: u64) -> io::Result<()> {
    open(dir)?.write_all_at(&micros.to_ne_bytes(), 8)
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(dir.join("clock"))
}
