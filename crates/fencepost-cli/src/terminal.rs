//! The controlling terminal and who has its foreground.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsFd;

use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal. Changing its foreground from the background needs SIGTTOU blocked, which
/// [`crate::signals::Signals`] does.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty })
    }

    /// This process's group has the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(getpgrp())
    }

    /// The group in the foreground.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Puts `group` into the foreground. It may have ended meanwhile; then nothing changes.
    pub(crate) fn give(&self, group: Pid) {
        let _ = tcsetpgrp(&self.tty, group);
    }

    /// Takes the foreground back from `group`, if it still has it.
    pub(crate) fn take_from(&self, group: Pid) {
        if self.foreground() == Some(group) {
            self.give(getpgrp());
        }
    }
}

/// Whether the program should have the foreground from the start: it reads from the terminal, and what it
/// writes does not go to a pager in our own group, which needs the keyboard itself. Where this says no,
/// the program still gets it when it first asks (SIGTTIN, SIGTTOU).
pub(crate) fn reads_keyboard() -> bool {
    let piped = |fd: std::os::fd::BorrowedFd<'_>| {
        fstat(fd).is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO)
    };
    std::io::stdin().is_terminal() && !piped(std::io::stdout().as_fd())
}
