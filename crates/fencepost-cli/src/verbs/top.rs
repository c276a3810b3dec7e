//! `fencepost top`: the locks on a terminal, as they change.

use std::time::{Duration, Instant};

use fencepost_core::Name;
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{Event, KeyEventKind};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::sync::{mpsc, watch};

use crate::connect::choose;
use crate::duration;
use crate::exit::{Failure, OWN};
use crate::reach::redacted;
use crate::settings::Settings;
use crate::show;
use crate::signals::{Signals, ends_wait, suspend};
use crate::top::draw::{Palette, body, draw};
use crate::top::looks::{Engine, Look};
use crate::top::screen::{Screen, is_there, keyboard};
use crate::top::state::{State, Wish};

/// Show the locks on a terminal, live, until you quit.
///
/// Looks at the engine every second (--every). It shows how many locks are held, how many claims wait, and how many grants a second it has
/// seen; a grant that began and ended between two looks is missed. Overdue holders and long queues come first. Enter shows one lock: its
/// holders, its queue and its last runs. '?' shows all keys, and 'q' quits. While the engine is unavailable, the head says why, and the
/// last state stays with its age.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost top [OPTIONS] [PREFIX]",
    after_help = "Examples:
  fencepost top
  fencepost top stock/ --every 5s"
)]
pub(crate) struct Args {
    /// Look every DUR, at least 10ms
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = duration::parse)]
    every: Duration,
    /// Show only names that begin with PREFIX
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// How often the ages in the head are drawn anew while no look ends.
const AGES: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) async fn run(args: Args, settings: &Settings, signals: &mut Signals) -> Result<u8, Failure> {
    if args.every < Duration::from_millis(10) {
        return Err(Failure::usage("--every must be at least 10ms"));
    }
    if !is_there() {
        return Err(Failure::usage(
            "top needs a terminal; use 'fencepost watch' to log what happens, or 'fencepost ls --json' in a program",
        ));
    }
    let address = redacted(&choose(settings)?.url);
    let mut engine = tokio::select! {
        engine = Engine::open(settings, args.prefix.clone()) => engine?,
        signal = ending(signals) => return Err(Failure::signal(signal)),
    };
    let (ask, asked) = watch::channel(None);
    let (tell, told) = mpsc::channel(1);
    let mut view = Window {
        screen: Screen::open()?,
        keys: keyboard()?,
        state: State::new(show::visible(&address), args.prefix),
        palette: Palette { colour: show::colour() },
        ask,
    };
    let outcome = tokio::select! {
        failure = engine.looks(asked, tell, args.every) => Err(failure),
        outcome = view.show(told, signals) => outcome,
    };
    // Before a failure is printed.
    drop(view);
    let outcome = outcome.map_err(Failure::said);
    engine.close().await;
    outcome
}

/// The next signal that ends a process by default.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if ends_wait(signal) {
            return signal;
        }
    }
}

/// The view and its reader.
struct Window {
    screen: Screen,
    keys: UnboundedReceiver<Event>,
    state: State,
    palette: Palette,
    /// Tells which lock is shown alone.
    ask: watch::Sender<Option<Name>>,
}

impl Window {
    /// Shows what is found, until the reader or a signal ends it.
    async fn show(
        &mut self,
        mut found: Receiver<Result<Look, String>>,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        let mut ages = tokio::time::interval(AGES);
        loop {
            self.screen.terminal.draw(|frame| draw(frame, &self.state, Instant::now(), self.palette))?;
            let wish = tokio::select! {
                signal = signals.next() => match signal {
                    signal if ends_wait(signal) => return Err(Failure::signal(signal)),
                    Signal::SIGTSTP => Wish::Suspend,
                    // The shell may have changed the terminal meanwhile.
                    Signal::SIGCONT => { self.screen.without(|| ())?; Wish::Draw }
                    _ => Wish::Draw,
                },
                Some(look) = found.recv() => { self.state.take(look, Instant::now()); Wish::Draw }
                event = self.keys.recv() => match event {
                    Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                        let size = self.screen.terminal.size()?;
                        self.state.press(key, body(size))
                    }
                    Some(_) => Wish::Draw,
                    None => return Err(Failure::new(OWN, "cannot read the terminal's keyboard")),
                },
                _ = ages.tick() => Wish::Draw,
            };
            match wish {
                Wish::Draw => {}
                Wish::Look => self.ask.send_replace(self.state.open().cloned()).map_or((), drop),
                Wish::Quit => return Ok(0),
                Wish::Interrupt => return Err(Failure::signal(Signal::SIGINT)),
                Wish::Suspend => self.screen.without(suspend)?,
            }
        }
    }
}
