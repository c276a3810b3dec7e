//! The output of a demo: bars that move on a terminal, lines in a pipe, or JSON.

use std::io::{IsTerminal, Write};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Where the demo shows what happens.
pub(crate) struct Picture {
    kind: Kind,
}

enum Kind {
    Terminal(MultiProgress),
    Lines,
    Json,
}

/// A line of the picture.
pub(crate) struct Row {
    name: &'static str,
    bar: Option<ProgressBar>,
}

impl Picture {
    pub(crate) fn new(json: bool) -> Picture {
        let kind = match json {
            true => Kind::Json,
            false if std::io::stdout().is_terminal() => {
                Kind::Terminal(MultiProgress::with_draw_target(ProgressDrawTarget::stdout()))
            }
            false => Kind::Lines,
        };
        Picture { kind }
    }

    /// Says something to a person. A program that reads JSON does not get it.
    pub(crate) fn say(&self, text: &str) {
        match &self.kind {
            Kind::Terminal(bars) => drop(bars.println(text)),
            Kind::Lines => print(text),
            Kind::Json => {}
        }
    }

    /// Begins a row, with a bar of this length on a terminal.
    pub(crate) fn row(&self, name: &'static str, length: u64) -> Row {
        let bar = match &self.kind {
            Kind::Terminal(bars) => {
                let style = ProgressStyle::with_template("  {prefix:<18} {bar:24} {msg}");
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                let bar = bars.add(ProgressBar::new(length).with_style(style).with_prefix(name));
                Some(bar)
            }
            Kind::Lines | Kind::Json => None,
        };
        Row { name, bar }
    }

    /// Ends a row: with its text for a person, with its facts for a program.
    pub(crate) fn end(&self, row: Row, text: &str, facts: &impl Serialize) {
        match (&self.kind, row.bar) {
            (Kind::Json, _) => print(&serde_json::to_string(facts).unwrap_or_default()),
            (_, Some(bar)) => bar.finish_with_message(text.to_owned()),
            (_, None) => print(&format!("  {:<18} {text}", row.name)),
        }
    }
}

impl Row {
    /// Shows how far it is.
    pub(crate) fn move_to(&self, position: u64, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(text.to_owned());
        }
    }
}

/// Prints a line. A reader that has gone away is no failure of the demo.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
