//! The wrapper's side of its guardian.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::GUARDIAN;
use super::protocol::{Begin, Event, Frame, Inbox, Order, send_start};
use crate::exit::{Failure, OWN};
use crate::log;

/// How to run the program.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) begin: Begin,
    /// The descriptor that keeps the grant at the engine. All that the program starts inherits it.
    pub(crate) lock: Option<OwnedFd>,
}

/// A guardian that runs nothing yet. Its start takes a few milliseconds, which pass while the client asks for the lock. If
/// the grant belongs to a connection, the guardian starts after the grant and inherits the connection. Dropping the guardian
/// ends it.
#[derive(Debug)]
pub(crate) struct IdleGuardian {
    near: StdStream,
    /// `None`: it has begun.
    pid: Option<Pid>,
}

impl IdleGuardian {
    /// Starts a guardian for `program`.
    ///
    /// # Errors
    ///
    /// No process could be made.
    pub(crate) fn start(program: &[OsString]) -> io::Result<Self> {
        let (near, far) = StdStream::pair()?;
        near.set_nonblocking(true)?;
        let guardian = Command::new("/proc/self/exe")
            .arg0("fencepost")
            .arg(GUARDIAN)
            .args(program)
            .envs(log::format().map(|format| (log::VARIABLE, format.as_str())))
            .stdin(Stdio::from(OwnedFd::from(far)))
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(guardian.id()).map(Pid::from_raw).map_err(io::Error::other)?;
        Ok(Self { near, pid: Some(pid) })
    }
}

impl Drop for IdleGuardian {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            // The kernel kills its child with it.
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}

/// Refuses to run a program without /proc, before the lock is asked for.
///
/// # Errors
///
/// It is not mounted.
pub(crate) fn check_proc() -> Result<(), Failure> {
    fs::symlink_metadata("/proc/self/exe").map(drop).map_err(|error| {
        let message = "cannot run a program without /proc: the guardian is started from /proc/self/exe, and finds the descendants of \
                       the program in /proc; mount it (mount -t proc proc /proc)";
        Failure::new(OWN, format!("{message}: {error}"))
    })
}

/// A guardian that runs the program. Dropping it closes the socket, upon which the guardian kills.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    /// The same socket, to be written at once: the runtime does not write before it has seen that it may.
    out: StdStream,
    inbox: Inbox,
    pid: Pid,
}

impl Link {
    /// Tells the guardian to begin.
    pub(crate) fn begin(mut guardian: IdleGuardian, plan: &Plan) -> io::Result<Self> {
        // All that can fail comes before the guardian may start the program.
        let (out, stream) = (guardian.near.try_clone()?, UnixStream::from_std(guardian.near.try_clone()?)?);
        let stdin = io::stdin();
        let descriptors: Vec<_> =
            [Some(stdin.as_fd()), plan.lock.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
        send_start(&out, &plan.begin, &descriptors)?;
        let pid = guardian.pid.take().ok_or_else(|| io::Error::other("it has begun before"))?;
        Ok(Self { stream, out, inbox: Inbox::default(), pid })
    }

    /// Returns the guardian's next event, or `None` when it has ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Ok(Some(event)) = self.inbox.pop() {
                return Some(event);
            }
            let mut bytes = [0; 256];
            match self.stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.inbox.push(&bytes[..n]),
            }
        }
    }

    /// Tells the guardian. One that is gone is noticed by [`Link::next`].
    pub(crate) fn tell(&self, order: Order) {
        // Thousands of frames fit into the socket. A guardian that has let it fill up is stopped, which the wrapper's own timer
        // notices.
        let _ = (&self.out).write_all(&order.encode());
    }

    /// Kills the guardian, which kills the program: for a guardian that does not answer any more.
    pub(crate) fn destroy(&self) {
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    /// Reaps the guardian, which has closed its end.
    pub(crate) fn reap(self) {
        drop((self.stream, self.out));
        let _ = waitpid(self.pid, None);
    }
}
