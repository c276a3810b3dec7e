//! The wrapper's side of its guardian.

use std::ffi::OsString;
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

/// The program to run, and how.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) program: &'a [OsString],
    pub(crate) environment: &'a [(&'static str, String)],
    pub(crate) end: u64,
    pub(crate) latest: u64,
    pub(crate) grace: u64,
    pub(crate) floor: u64,
    pub(crate) notice: Option<u64>,
    pub(crate) limit: Option<u64>,
    pub(crate) foreground: bool,
    pub(crate) blocked: Vec<i32>,
    /// The descriptor that keeps the grant at the engine. All that the program starts inherits it.
    pub(crate) lock: Option<OwnedFd>,
    pub(crate) over: Option<Vec<u8>>,
}

/// A running guardian. Dropping it closes the socket, upon which the guardian kills.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    /// The same socket, to be written at once: the runtime does not write before it has seen that it may.
    out: StdStream,
    inbox: Inbox,
    pid: Pid,
}

impl Link {
    /// Starts a guardian and tells it to begin.
    pub(crate) fn start(plan: Plan<'_>) -> io::Result<Self> {
        let (near, far) = StdStream::pair()?;
        near.set_nonblocking(true)?;
        // All that can fail comes before the guardian may start the program.
        let out = near.try_clone()?;
        let stream = UnixStream::from_std(near)?;
        let guardian = Command::new("/proc/self/exe")
            .arg0("fencepost")
            .arg(GUARDIAN)
            .args(plan.program)
            .envs(plan.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(far)))
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(guardian.id()).map(Pid::from_raw).map_err(io::Error::other)?;
        let begin = Begin {
            end: plan.end,
            latest: plan.latest,
            grace: plan.grace,
            floor: plan.floor,
            notice: plan.notice,
            limit: plan.limit,
            foreground: plan.foreground,
            blocked: plan.blocked,
            over: plan.over,
        };
        let stdin = io::stdin();
        let descriptors: Vec<_> =
            [Some(stdin.as_fd()), plan.lock.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
        send_start(&out, &begin, &descriptors)?;
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
