//! Pipes, read within a bound; and those that tell when everything that has them open is dead.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::kit::{LONG, Place, eventually, stats};

/// The reading end of a pipe. It never waits longer than [`LONG`].
pub(crate) struct Reader {
    file: File,
    text: String,
    /// The beginning of a character whose rest is still to come.
    begun: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { file: pipe.into(), text: String::new(), begun: Vec::new() }
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        eventually("a line", LONG, || self.next_line())
    }

    /// The next line, if it has come.
    fn next_line(&mut self) -> Option<String> {
        self.fill(PollTimeout::ZERO);
        let (line, rest) = self.text.split_once('\n')?;
        let line = line.to_owned();
        self.text = rest.to_owned();
        Some(line)
    }

    /// Returns the output that was not read yet.
    pub(crate) fn rest(&mut self) -> String {
        self.fill(PollTimeout::ZERO);
        std::mem::take(&mut self.text)
    }

    /// Everything, until nobody has the other end open any more.
    pub(crate) fn all(mut self) -> String {
        self.ended(LONG);
        self.text
    }

    /// Waits until nobody has the other end open any more.
    fn ended(&mut self, bound: Duration) {
        let end = Instant::now() + bound;
        while !self.fill(PollTimeout::from(100u16)) {
            assert!(
                Instant::now() < end,
                "somebody still has it open after {bound:?}; it said {:?}",
                self.text
            );
        }
    }

    /// Takes in what is there, waiting so long for it; true when there is nothing more to come.
    pub(crate) fn fill(&mut self, mut wait: PollTimeout) -> bool {
        loop {
            let seen = look(&self.file, wait);
            // A hangup without data is the end; a named pipe that was never open has none.
            if !seen.contains(PollFlags::POLLIN) {
                return seen.contains(PollFlags::POLLHUP);
            }
            let mut bytes = [0; 4096];
            let n = self.file.read(&mut bytes).unwrap();
            self.begun.extend_from_slice(&bytes[..n]);
            let whole = match std::str::from_utf8(&self.begun) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            let rest = self.begun.split_off(whole);
            assert!(rest.len() < 4, "what was written is no text");
            self.text.push_str(std::str::from_utf8(&self.begun).unwrap());
            self.begun = rest;
            wait = PollTimeout::ZERO;
        }
    }
}

fn look(file: &File, wait: PollTimeout) -> PollFlags {
    let mut at = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut at, wait).unwrap();
    at[0].revents().unwrap_or(PollFlags::empty())
}

/// A named pipe that a script and all that it starts have open for writing.
pub(crate) struct Pipe {
    pub(crate) path: PathBuf,
    reader: Reader,
}

impl Pipe {
    pub(crate) fn new(place: &Place) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = place.path(&format!("pipe{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        // Without O_NONBLOCK this would wait for somebody who writes.
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
        Self { path, reader: Reader::new(file.into()) }
    }

    /// The next line that was written.
    pub(crate) fn line(&mut self) -> String {
        self.reader.line()
    }

    /// The next line, if it was written.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        self.reader.next_line()
    }

    /// Returns the output that was not read yet.
    pub(crate) fn rest(&mut self) -> String {
        self.reader.rest()
    }

    /// Waits until nobody has it open any more: all that the script started is dead.
    pub(crate) fn closed(&mut self, bound: Duration) {
        self.reader.ended(bound);
    }

    /// Whether somebody has it open.
    pub(crate) fn is_open(&self) -> bool {
        !look(&self.reader.file, PollTimeout::ZERO).contains(PollFlags::POLLHUP)
    }

    /// Kills all that have it open.
    pub(crate) fn kill_users(&self) {
        for (pid, _, _) in stats() {
            let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            let has = open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == self.path));
            if has && pid != i32::try_from(std::process::id()).unwrap() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}
