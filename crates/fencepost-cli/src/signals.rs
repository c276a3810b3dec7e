//! The signals of the wrapper. They are blocked and read from a descriptor, so none is lost between two
//! steps, none interrupts a call, and what the caller had set to be ignored (`nohup`) stays ignored.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Passed on to the program; SIGTSTP and SIGCONT in their own way.
const PASSED_ON: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// The signals that ask the command to end.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// Whether this signal asks the command to end.
pub(crate) fn ends(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Whether this signal ends a process by default, and so the command while no program runs.
pub(crate) fn ends_wait(signal: Signal) -> bool {
    ends(signal) || matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2 | Signal::SIGALRM)
}

/// The signals that the caller has set to be ignored, as `nohup` does. To ask for them by a call needs `unsafe`.
fn ignored() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    Signal::iterator().filter(|signal| mask >> (*signal as i32 - 1) & 1 == 1).collect()
}

/// Makes dead children visible to `wait` where the caller has set SIGCHLD to be ignored.
pub(crate) fn hear_children() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Makes a write beyond the file size limit fail, which would end this process by SIGXFSZ. `exec` undoes a handler, so the
/// program has what the caller had set.
pub(crate) fn let_writes_fail() {
    if !ignored().contains(Signal::SIGXFSZ) {
        // Without the handler the limit ends this process, as it ends any other.
        let _ = signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::new(AtomicBool::new(false)));
    }
}

/// The blocked signals of this process, read by a small thread.
#[derive(Debug)]
pub(crate) struct Signals {
    heard: UnboundedReceiver<Signal>,
    /// The signals that this process has blocked and its caller had not. They are unblocked for the program.
    blocked: Vec<i32>,
}

impl Signals {
    /// Blocks them and begins to listen. To be called before any other thread exists: threads inherit the
    /// mask.
    ///
    /// # Errors
    ///
    /// The system has no descriptor or no thread left.
    pub(crate) fn block() -> io::Result<Self> {
        let before = SigSet::thread_get_mask()?;
        // One that is blocked is queued although it is ignored, so those stay out of the mask.
        let ignored = ignored();
        let read: SigSet = PASSED_ON.into_iter().filter(|signal| !ignored.contains(*signal)).collect();
        let mut mask = read;
        // A background group that sets the terminal's foreground would be stopped by it.
        mask.add(Signal::SIGTTOU);
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let blocked = mask.iter().filter(|signal| !before.contains(*signal)).map(|signal| signal as i32);
        let source = SignalFd::with_flags(&read, SfdFlags::SFD_CLOEXEC)?;
        let (tell, heard) = unbounded_channel();
        thread::Builder::new().name("signals".into()).stack_size(64 * 1024).spawn(move || {
            loop {
                match source.read_signal() {
                    Ok(Some(info)) => {
                        let signal =
                            i32::try_from(info.ssi_signo).ok().and_then(|n| Signal::try_from(n).ok());
                        if signal.is_some_and(|signal| tell.send(signal).is_err()) {
                            return;
                        }
                    }
                    Ok(None) | Err(Errno::EINTR) => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(Self { heard, blocked: blocked.collect() })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.heard.recv().await {
            Some(signal) => signal,
            // The thread ends only with its process.
            None => std::future::pending().await,
        }
    }

    /// A signal that has already arrived.
    pub(crate) fn pending(&mut self) -> Option<Signal> {
        self.heard.try_recv().ok()
    }

    /// Returns the signals that are unblocked for the program.
    pub(crate) fn blocked(&self) -> &[i32] {
        &self.blocked
    }
}

/// Stops this process alone, as Ctrl-Z does with each process of the foreground, until it is continued.
pub(crate) fn suspend() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTSTP);
    if mask.thread_unblock().is_ok() {
        let _ = nix::sys::signal::raise(Signal::SIGTSTP);
        let _ = mask.thread_block();
    }
}

/// Stops this process and its group as Ctrl-Z would, until it is continued. A group that nobody could
/// continue (an orphaned one) is not stopped.
pub(crate) fn stop_self() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTSTP);
    if mask.thread_unblock().is_ok() {
        // With the signal unblocked in this thread alone, it is this call that stops.
        let _ = nix::sys::signal::killpg(nix::unistd::getpgrp(), Signal::SIGTSTP);
        let _ = mask.thread_block();
    }
}
