//! The guardian: a small process of one thread between `fencepost run` and the program.
//!
//! It holds the timer. The wrapper reports every confirmed renewal, and the guardian answers each report.
//! - No report comes (a stopped wrapper, an engine that is away): the guardian ends the program before the lease can end.
//! - No answer comes: the wrapper kills the guardian.
//! - The wrapper dies: the socket closes. The guardian kills the program and its descendants, then releases the locks.
//! - The guardian dies: the kernel kills the program (PR_SET_PDEATHSIG), and the wrapper, a subreaper, its descendants.
//!
//! It is a re-execution of this binary, never a fork: the wrapper has threads. Its signals are blocked for
//! good, except those that cannot be.

mod abandoned;
mod child;
mod link;
mod phase;
mod protocol;
mod timer;
mod tree;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use fencepost_core::Backoff;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use rustix::net::sockopt::socket_peercred;

pub(crate) use abandoned::Abandoned;
pub(crate) use child::main as child_main;
pub(crate) use link::{IdleGuardian, Link, Plan, check_proc};
pub(crate) use protocol::{Begin, Event, Order, Why};
pub(crate) use timer::{floor, grace};
use tree::names_of_descendants;
pub(crate) use tree::{own_children, signal_descendants};

use child::{Child, pass_on};
use phase::{Phase, ROUNDS, Step};
use protocol::{Frame, Inbox, Setup, receive_start, send_start};
use timer::Timer;

use crate::clock::{nanos, now};
use crate::fault::fault_point;
use crate::log;
use crate::show::visible;

/// The hidden subcommand of the guardian.
pub(crate) const GUARDIAN: &str = "__guardian";
/// The hidden subcommand that becomes the program.
pub(crate) const CHILD: &str = "__child";

/// The guardian's state.
struct Guardian {
    control: UnixStream,
    /// The wrapper's process id, for people.
    wrapper: i32,
    /// The wrapper's end is open: it lives.
    attached: bool,
    inbox: Inbox,
    begin: Begin,
    timer: Timer,
    signals: SignalFd,
    child: Pid,
    /// The child's socket, over which it says that it has not become the program.
    late: Option<UnixStream>,
    /// The program itself has ended (others may be left).
    ended: bool,
    phase: Phase,
    /// The wrapper may be unable to release: the grant is marked as over at the end.
    forsaken: bool,
}

/// Runs as the guardian: control socket on stdin, the program in the arguments. The exit code is only seen
/// by the wrapper's `wait`.
pub(crate) fn main(program: &[OsString]) -> u8 {
    match Guardian::start(program).and_then(|guardian| guardian.map_or(Ok(()), Guardian::watch)) {
        Ok(()) => 0,
        Err(error) => {
            error!("the guardian process failed: {error}");
            125
        }
    }
}

impl Guardian {
    /// Returns `None` if the wrapper has closed its end before anything was run.
    fn start(program: &[OsString]) -> io::Result<Option<Self>> {
        let known: SigSet = Signal::iterator().collect();
        let before = SigSet::thread_get_mask()?;
        known.thread_block()?;
        prctl::set_child_subreaper(true)?;
        // A guardian that is stopped when its wrapper dies goes on, and finds the socket closed.
        prctl::set_pdeathsig(Signal::SIGCONT)?;
        prctl::set_name(c"fencepost-guard")?;
        crate::signals::hear_children()?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

        let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Its start takes time, which passes while the wrapper asks for the lock.
        let child = Child::start(program);
        let Some((mut begin, descriptors)) = receive_start::<Begin>(&control)? else { return Ok(None) };
        fault_point("guardian");
        log::about_grant(&begin.environment);
        let own = known.iter().filter(|signal| !before.contains(*signal)).map(|signal| signal as i32);
        begin.blocked.extend(own);
        control.set_nonblocking(true)?;
        let mut descriptors = descriptors.into_iter();
        let stdin =
            descriptors.next().ok_or_else(|| io::Error::other("the program's stdin did not arrive"))?;
        let lock = descriptors.next().map(pass_on).transpose()?;

        // The process that made the pair of sockets. The parent is another process if the wrapper is dead by now.
        let wrapper = socket_peercred(&control)?.pid.as_raw_nonzero().get();
        let mut guardian = Self {
            control,
            wrapper,
            attached: true,
            inbox: Inbox::default(),
            begin,
            timer: Timer::new()?,
            signals,
            child: Pid::from_raw(0),
            late: None,
            ended: false,
            phase: Phase::Running,
            forsaken: false,
        };
        if now() >= guardian.begin.latest {
            guardian.refuse();
            return Ok(Some(guardian));
        }
        match child {
            Ok(child) => {
                let descriptors = [Some(stdin.as_fd()), lock.as_ref().map(AsFd::as_fd)];
                guardian.begin(child, &descriptors.into_iter().flatten().collect::<Vec<_>>());
                guardian.say(Event::Started(guardian.child.as_raw()));
            }
            Err(error) => {
                guardian.ended = true;
                guardian.say(Event::Failed(error.raw_os_error().unwrap_or(0)));
            }
        }
        Ok(Some(guardian))
    }

    /// Tells the child to become the program.
    fn begin(&mut self, child: Child, descriptors: &[BorrowedFd<'_>]) {
        let setup = Setup {
            guardian: getpid().as_raw(),
            latest: self.begin.latest,
            foreground: self.begin.foreground,
            blocked: self.begin.blocked.clone(),
            environment: std::mem::take(&mut self.begin.environment),
        };
        // A child that has died reads nothing; `reap` reports its end.
        let _ = send_start(&child.near, &setup, descriptors);
        self.child = child.pid;
        self.late = Some(child.near);
    }

    /// Tells the wrapper that nothing is run. A child that was not told to begin ends when its socket is closed.
    fn refuse(&mut self) {
        self.ended = true;
        self.forsaken = true;
        self.say(Event::Late);
    }

    /// Whether the child that has ended says that it has not become the program.
    fn came_late(&mut self) -> bool {
        self.late.take().is_some_and(|mut child| child.read(&mut [0]).is_ok_and(|n| n > 0))
    }

    /// Goes on until nothing is left to be reaped, or what is left may live on.
    fn watch(mut self) -> io::Result<()> {
        while self.reap()? {
            if self.begin.leave && self.ended && self.phase == Phase::Running {
                self.report("leaving");
                break;
            }
            self.act();
            // Each step changes the phase, so a timer that has fired is set again.
            self.timer.set(self.phase.due(self.last_term(), self.begin.limit))?;
            let mut waits = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
            ];
            let waits = if self.attached { &mut waits[..] } else { &mut waits[..2] };
            match poll(waits, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            while let Ok(Some(_)) = self.signals.read_signal() {}
            self.listen();
        }
        if let Some(file) = self.begin.over.take().filter(|_| self.forsaken) {
            let file = PathBuf::from(OsStr::from_bytes(&file));
            // Without the file nobody can hold the grant to be alive.
            if let Err(error) = fencepost_sqlite::mark_over(&file)
                && error.kind() != io::ErrorKind::NotFound
            {
                error!("cannot mark the lock as free in {}: {error}", file.display());
            }
        }
        if let Some(abandoned) = self.begin.abandoned.take().filter(|_| !self.attached)
            && let Err(failure) = abandoned.release()
        {
            note(&format!(
                "the lock could not be released, and is freed when its lease ends: {}",
                failure.message
            ));
        }
        self.say(Event::Gone);
        Ok(())
    }

    /// Takes in every dead process; false when there is none left, dead or alive.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::StillAlive) => return Ok(true),
                Ok(WaitStatus::Exited(pid, _)) if pid == self.child && !self.ended && self.came_late() => {
                    self.refuse();
                }
                Ok(WaitStatus::Exited(pid, code)) if pid == self.child && !self.ended => {
                    self.ended = true;
                    self.say(Event::Exited(code));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.child && !self.ended => {
                    self.ended = true;
                    self.say(Event::Signaled(signal as i32));
                }
                Ok(WaitStatus::Stopped(pid, signal)) if pid == self.child && !self.ended => {
                    self.say(Event::Stopped(signal as i32));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// When SIGKILL must be sent at the latest.
    fn last_kill(&self) -> u64 {
        self.begin.end.saturating_sub(self.begin.floor)
    }

    /// When SIGTERM must be sent so that the notice fits before it, if the lease is to be kept to.
    fn last_term(&self) -> Option<u64> {
        self.begin.notice.map(|notice| self.last_kill().saturating_sub(notice))
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = now();
        match self.phase.step(now, self.last_term(), self.begin.limit, self.ended) {
            Step::Wait => {}
            Step::End(why) => {
                self.forsaken |= why == Some(Why::Unrenewed);
                match why {
                    Some(why) => self.say(Event::Ending(why)),
                    None => self.report("ending"),
                }
                self.end(now);
            }
            Step::Kill(rounds) => self.kill(now, rounds),
        }
    }

    /// SIGTERM to everything, with the grace that the lease still allows.
    fn end(&mut self, now: u64) {
        let mut kill = now.saturating_add(self.begin.grace);
        if self.begin.notice.is_some() {
            kill = kill.min(self.last_kill());
        }
        self.phase = Phase::Ending(kill);
        signal_descendants(Signal::SIGTERM, &HashSet::new());
        // A stopped process reacts to SIGKILL and SIGCONT alone.
        signal_descendants(Signal::SIGCONT, &HashSet::new());
    }

    fn kill(&mut self, now: u64, mut rounds: Backoff) {
        signal_descendants(Signal::SIGKILL, &HashSet::new());
        self.phase = Phase::Killing(now.saturating_add(nanos(rounds.pause())), rounds);
    }

    /// Reads what the wrapper says; its silence for good is the end.
    fn listen(&mut self) {
        let mut bytes = [0; 256];
        while self.attached {
            match self.control.read(&mut bytes) {
                Ok(0) => self.abandoned(),
                Ok(n) => self.inbox.push(&bytes[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.abandoned(),
            }
        }
        loop {
            match self.inbox.pop::<Order>() {
                Ok(Some(order)) => self.obey(order),
                Ok(None) => break,
                Err(_) => {
                    self.abandoned();
                    break;
                }
            }
        }
    }

    fn abandoned(&mut self) {
        self.attached = false;
        self.forsaken = true;
        if !matches!(self.phase, Phase::Killing(..)) {
            self.kill(now(), ROUNDS);
        }
        note(&format!(
            "'fencepost run' (process {}) was killed: killed the program and its descendants",
            self.wrapper
        ));
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::End(at) => {
                self.begin.end = self.begin.end.max(at);
                self.say(Event::Renewed(self.begin.end));
            }
            Order::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number)
                    && !self.ended
                    && killpg(self.child, signal).is_err()
                {
                    // It has left its group; a failure here means that it has just ended.
                    let _ = kill(self.child, signal);
                }
            }
            Order::Stop if self.phase == Phase::Running => self.end(now()),
            Order::Kill if !matches!(self.phase, Phase::Killing(..)) => self.kill(now(), ROUNDS),
            Order::Stop | Order::Kill => {}
        }
    }

    /// Says what is done with the descendants that the program left, if the user wants to know.
    fn report(&self, done: &str) {
        if self.begin.verbose {
            report(done, &names_of_descendants());
        }
    }

    /// Tells the wrapper. It may be dead or stopped, which is no reason to stop here.
    fn say(&mut self, event: Event) {
        let _ = self.control.write_all(&event.encode());
    }
}

/// Says a line on standard error if that takes it at once: the guardian does not wait for a reader.
fn note(line: &str) {
    if is_read() {
        error!("{line}");
    }
}

/// Whether standard error takes a line at once.
fn is_read() -> bool {
    let stderr = io::stderr();
    let mut at = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut at, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// The most names in the line about descendants.
const NAMED: usize = 10;

/// Says which descendants the program left, and what is `done` with them.
fn report(done: &str, names: &[String]) {
    let processes = match names.len() {
        // They have just ended by themselves.
        0 => return,
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let more = if names.len() > NAMED { ", …" } else { "" };
    let shown = visible(&names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", "));
    let text = format!("the program exited; {done} {processes} that it left running: {shown}{more}");
    if is_read() {
        log::line(log::Level::Info, &text, &[("event", "descendants".into()), ("processes", names.into())]);
    }
}
