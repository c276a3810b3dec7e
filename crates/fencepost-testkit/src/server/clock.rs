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

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds to add; and, unless zero, the microseconds since 1970 at which it stands still. */
static volatile long long *offset;

__attribute__((constructor)) static void load(void) {
    int file = open(getenv("FENCEPOST_CLOCK"), O_RDONLY);
    void *map = mmap(0, 2 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) abort();
    offset = map;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, id, now);
    if (answer == 0 && id == CLOCK_REALTIME && offset) {
        long long still = offset[1];
        if (still) {
            now->tv_sec = still / 1000000;
            now->tv_nsec = still % 1000000 * 1000;
        } else {
            now->tv_sec += offset[0];
        }
    }
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (to) *to = precise.tv_sec;
    return precise.tv_sec;
}
"#;

/// Writes the shim, and a clock with no offset, into the folder, unless they are there.
pub(crate) fn prepare(dir: &Path) -> io::Result<()> {
    if dir.join("clock").exists() {
        return Ok(());
    }
    std::fs::write(dir.join("clock.c"), SHIM)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o", "clock.so", "clock.c"])
        .current_dir(dir)
        .output()?;
    if !built.status.success() {
        return Err(io::Error::other(format!("cc: {}", String::from_utf8_lossy(&built.stderr))));
    }
    std::fs::write(dir.join("clock"), [0; 16])
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
