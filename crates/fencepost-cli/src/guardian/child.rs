//! The last step before the program: a process that prepares itself and then becomes it.
//!
//! This is a hidden subcommand and no hook between fork and exec, because such a hook needs `unsafe`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, getppid};

use super::CHILD;
use super::protocol::{Setup, receive_start};
use crate::clock::now;
use crate::fault::fault_point;
use crate::log;
use crate::terminal::Terminal;

/// The guardian's side of a child that has not been told to begin. It ends when this is dropped.
pub(super) struct Child {
    pub(super) near: UnixStream,
    pub(super) pid: Pid,
}

impl Child {
    /// Starts it; the signals that it is to have blocked are blocked now.
    pub(super) fn start(program: &[OsString]) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        // Its messages are read when it has ended.
        near.set_nonblocking(true)?;
        let child = Command::new("/proc/self/exe")
            .arg0("fencepost")
            .arg(CHILD)
            .args(program)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)?;
        Ok(Self { near, pid })
    }
}

/// Becomes the program in the arguments. It returns only after a failure, with the exit code. Stdin is a socket to the guardian; exec
/// closes it. If the lease has expired, this process writes one byte to the guardian and ends.
pub(crate) fn main(program: &[OsString]) -> u8 {
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        error!("cannot start the program: {error}");
        return 125;
    }
    let start = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let start = start.and_then(|socket| receive_start::<Setup>(&socket).map(|start| (start, socket)));
    let (setup, descriptors, mut guardian) = match start {
        Ok((Some((setup, descriptors)), guardian)) => (setup, descriptors, guardian),
        // The lock was not to be had.
        Ok((None, _)) => return 0,
        Err(_) => return misused(),
    };
    log::about_grant(&setup.environment);
    let [name, rest @ ..] = program else { return misused() };
    let mut descriptors = descriptors.into_iter();
    let Some(stdin) = descriptors.next() else { return 125 };
    if let Some(error) = descriptors.next().and_then(|lock| pass_on(lock).err()) {
        error!("cannot pass the lock on to the program: {error}");
        return 125;
    }
    // The guardian may have died before its death was to be told; the kernel then tells nobody.
    if getppid().as_raw() != setup.guardian {
        return 125;
    }
    if setup.foreground
        && let Some(terminal) = Terminal::open()
    {
        // SIGTTOU is blocked by the wrapper, so a background group may do this.
        terminal.give(getpgrp());
    }
    let unblock: SigSet = setup.blocked.iter().filter_map(|number| Signal::try_from(*number).ok()).collect();
    if let Err(error) = unblock.thread_unblock() {
        error!("cannot restore the signal mask: {error}");
        return 125;
    }
    fault_point("child");
    // The last step before the program. A pause after it cannot be noticed here.
    if now() >= setup.latest {
        // A guardian that is gone kills this process.
        let _ = guardian.write_all(&[0]);
        return 125;
    }
    let error = Command::new(name).args(rest).envs(setup.environment).stdin(Stdio::from(stdin)).exec();
    let name = name.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            error!(
                "cannot run '{name}': not found. Check the spelling and PATH; for a script, check the interpreter in \
                 its first line"
            );
            127
        }
        io::ErrorKind::PermissionDenied if std::path::Path::new(&program[0]).is_dir() => {
            error!("cannot run '{name}': it is a directory");
            126
        }
        io::ErrorKind::PermissionDenied => {
            error!("cannot run '{name}': not executable. Try: chmod +x {name}");
            126
        }
        _ => {
            error!("cannot run '{name}': {error}");
            126
        }
    }
}

fn misused() -> u8 {
    error!("{CHILD} is internal: see 'fencepost run --help'");
    125
}

/// The lock's descriptor is passed on under this number or above, out of the way of those that scripts choose themselves
/// (`exec 9>file`, and `200` in flock(1)'s manual).
const LOCK_DESCRIPTOR: i32 = 731;

/// Leaves a copy of the lock's descriptor open for every process to come.
pub(super) fn pass_on(lock: OwnedFd) -> io::Result<OwnedFd> {
    // Without room for high numbers any will do.
    if fcntl(&lock, FcntlArg::F_DUPFD(LOCK_DESCRIPTOR)).is_err() {
        fcntl(&lock, FcntlArg::F_DUPFD(3))?;
    }
    Ok(lock)
}
