//! The signals of the command, where the system has no `signalfd`.

use std::io;
use std::thread;

use nix::sys::signal::Signal;
use signal_hook::iterator::Signals as Source;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The signals that ask the command to end. SIGHUP keeps its default, because `nohup` has it ignored, and a handler would undo that:
/// a lock whose terminal is closed is free after its lease.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];

/// Whether this signal asks the command to end.
pub(crate) fn ends(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// Whether this signal ends the command while no program runs.
pub(crate) fn ends_wait(signal: Signal) -> bool {
    ends(signal)
}

/// A write beyond the file size limit ends this process, as it ends any other.
pub(crate) fn let_writes_fail() {}

/// The signals of this process, read by a small thread.
#[derive(Debug)]
pub(crate) struct Signals {
    heard: UnboundedReceiver<Signal>,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// The system has no descriptor or no thread left.
    pub(crate) fn block() -> io::Result<Self> {
        let mut source = Source::new(ENDING.map(|signal| signal as i32))?;
        let (tell, heard) = unbounded_channel();
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in source.forever().filter_map(|number| Signal::try_from(number).ok()) {
                if tell.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { heard })
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
}

/// Stops this process, as Ctrl-Z does, until it is continued.
pub(crate) fn suspend() {
    let _ = nix::sys::signal::raise(Signal::SIGTSTP);
}
