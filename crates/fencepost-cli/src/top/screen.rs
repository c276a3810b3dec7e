//! The terminal: taken over, and given back as it was.

use std::io::{self, IsTerminal, Stdout, stdin, stdout};
use std::panic;
use std::thread;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{Event, read};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Whether the reader has a terminal and a keyboard.
pub(crate) fn is_there() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// The terminal while the view has it. A drop gives it back.
pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal over. A panic of this thread gives it back before its message is printed.
    ///
    /// # Errors
    ///
    /// The terminal cannot be set up.
    pub(crate) fn open() -> io::Result<Screen> {
        let (before, this) = (panic::take_hook(), thread::current().id());
        panic::set_hook(Box::new(move |about| {
            if thread::current().id() == this {
                leave();
            }
            before(about);
        }));
        enter().inspect_err(|_| leave())?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).inspect_err(|_| leave())?;
        Ok(Screen { terminal })
    }

    /// Gives the terminal back, does `work`, and takes the terminal over again.
    ///
    /// # Errors
    ///
    /// The terminal cannot be set up again.
    pub(crate) fn without(&mut self, work: impl FnOnce()) -> io::Result<()> {
        leave();
        work();
        enter()?;
        // It knows that the screen is empty. To clear the other one would ask the terminal for its cursor, and the thread of the keyboard
        // would take the answer.
        self.terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// A terminal that has gone needs nothing.
fn leave() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Reads the keyboard in a thread of its own, which ends with the process. The channel closes if the keyboard cannot be read.
pub(crate) fn keyboard() -> io::Result<UnboundedReceiver<Event>> {
    let (tell, heard) = unbounded_channel();
    thread::Builder::new().name("keyboard".into()).spawn(move || {
        while let Ok(event) = read() {
            if tell.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(heard)
}
