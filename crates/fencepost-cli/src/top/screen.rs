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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use nix::pty::{Winsize, openpty};
    use nix::sys::termios::tcgetattr;

    use super::*;

    /// Set for the process whose view panics: this test once more, on a terminal of its own.
    const PANICS: &str = "FENCEPOST_TEST_PANICS";
    const NAME: &str = "top::screen::tests::a_panic_gives_the_terminal_back_before_its_message";

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        if std::env::var_os(PANICS).is_some() {
            let _screen = Screen::open().unwrap();
            panic!("the view has a defect");
        }
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let side = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
        let status = command.stdin(side()).stdout(side()).stderr(side()).status().unwrap();
        assert!(!status.success(), "it has panicked");
        assert_eq!(tcgetattr(&pty.slave).unwrap(), before);
        drop((command, pty.slave));
        // Once nobody writes any more, the end is an error.
        let mut shown = Vec::new();
        let _ = File::from(pty.master).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let at = |part: &str| shown.find(part).unwrap_or_else(|| panic!("no {part:?}: {shown:?}"));
        let (taken, given_back) = (at("\x1b[?1049h"), at("\x1b[?1049l\x1b[?25h"));
        assert!(taken < given_back && given_back < at("the view has a defect"), "{shown:?}");
    }
}
