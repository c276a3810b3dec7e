//! One line of `cargo xtask prove`: what is promised, how it is measured, and whether it holds.

use crate::peers;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A promise and the program that measures it. Lines are data: an engine adds its own to [`crate::lines::LINES`].
pub(crate) struct Line {
    /// A short name, unique, as `--only` takes it.
    pub(crate) id: &'static str,
    /// The engine, or `core` or `command`.
    pub(crate) engine: &'static str,
    /// The promise, as the page shows it.
    pub(crate) promise: &'static str,
    /// Arguments of `fencepost-bench`, which prints a [`Measured`] as its last line. Or `test`, a package, a unit test of it that
    /// runs as many cases as `FENCEPOST_CASES` says, and that number: the figure is how many passed.
    pub(crate) measure: &'static [&'static str],
    /// The bound of the measured figure.
    pub(crate) bound: Bound,
    /// How long it may take, in seconds.
    pub(crate) limit: u64,
}

/// A limit for one figure.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    /// No more than this, with its unit.
    AtMost(f64, &'static str),
    /// No less than this, with its unit.
    AtLeast(f64, &'static str),
}

/// The result of the program.
#[derive(Deserialize)]
pub(crate) struct Measured {
    /// The figure that the bound is for; none when something went wrong that no figure tells.
    pub(crate) figure: Option<f64>,
    /// How it came about: counts, medians, the floor.
    pub(crate) note: String,
}

impl Bound {
    /// Whether the figure keeps to it. No figure never does.
    pub(crate) fn holds(self, figure: Option<f64>) -> bool {
        let Some(figure) = figure else { return false };
        match self {
            Bound::AtMost(limit, _) => figure <= limit,
            Bound::AtLeast(limit, _) => figure >= limit,
        }
    }

    /// The bound in words.
    pub(crate) fn shown(self) -> String {
        match self {
            Bound::AtMost(0.0, unit) => format!("no {unit}"),
            Bound::AtMost(limit, unit) => format!("≤ {} {unit}", number(limit)),
            Bound::AtLeast(limit, unit) => format!("≥ {} {unit}", number(limit)),
        }
    }

    /// A figure with the bound's unit.
    pub(crate) fn figure(self, figure: Option<f64>) -> String {
        let Some(figure) = figure else { return "no figure".to_owned() };
        let (Bound::AtMost(_, unit) | Bound::AtLeast(_, unit)) = self;
        format!("{} {unit}", number(figure))
    }
}

/// The measurement that runs other libraries although its name does not end with `-peers`.
const MIXED: &str = "zookeeper-mixed";

impl Line {
    /// Runs the program and reads its last line.
    pub(crate) fn run(&self, workspace: &Workspace, bench: &str) -> Result<Measured, String> {
        if let ["test", package, test, cases] = self.measure {
            return self.test(workspace, package, test, cases);
        }
        let mut program =
            workspace.program(self.id, bench, self.measure).limit(Duration::from_secs(self.limit));
        if self.measure.iter().any(|word| word.ends_with("-peers") || *word == MIXED) {
            // Those of Redis are a quorum's, too.
            let of = if self.engine == "redlock" { "redis" } else { self.engine };
            program = program
                .env("FENCEPOST_PEERS", &peers::build(workspace, |engine| engine == of)?.to_string_lossy());
        }
        let output = program.run()?;
        let last = output.text.lines().rev().find(|line| line.starts_with('{'));
        let last = last.ok_or_else(|| format!("{} printed no result", self.measure.join(" ")))?;
        serde_json::from_str(last).map_err(|error| format!("{last}: {error}"))
    }

    fn test(
        &self,
        workspace: &Workspace,
        package: &str,
        test: &str,
        cases: &str,
    ) -> Result<Measured, String> {
        // Other seeds every time; what one finds is replayed by its number.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = (since.as_secs() << 16).to_string();
        let arguments = ["test", "--package", package, "--lib", "--", test, "--exact"];
        let program = workspace.cargo(self.id, &arguments).limit(Duration::from_secs(self.limit));
        let output = program.env("FENCEPOST_CASES", cases).env("FENCEPOST_SEED", &seed).run()?;
        if !output.text.contains("1 passed") {
            return Err(format!("{package} has no test {test}"));
        }
        Ok(Measured { figure: cases.parse().ok(), note: format!("seeds from {seed} on") })
    }
}

/// Three significant digits, and whole numbers in full with their thousands apart.
pub(crate) fn number(value: f64) -> String {
    if value.abs() >= 100.0 || value == value.trunc() {
        let digits = format!("{:.0}", value.abs());
        let mut shown = String::from(if value < 0.0 { "-" } else { "" });
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                shown.push(',');
            }
            shown.push(digit);
        }
        return shown;
    }
    let decimals = if value.abs() >= 10.0 {
        1
    } else if value.abs() >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_short() {
        let shown: Vec<_> = [0.0, 5.0, 0.0612, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0, -0.5]
            .map(number)
            .into_iter()
            .collect();
        assert_eq!(shown, ["0", "5", "0.061", "1.23", "12.3", "123", "1,234", "1,234,567", "-0.500"]);
    }

    #[test]
    fn bounds_hold_at_their_limit_and_never_without_a_figure() {
        for (bound, good, bad) in [(Bound::AtMost(2.0, "x"), 2.0, 2.1), (Bound::AtLeast(2.0, "x"), 2.0, 1.9)]
        {
            assert!(bound.holds(Some(good)) && !bound.holds(Some(bad)) && !bound.holds(None));
        }
        assert_eq!(Bound::AtMost(0.0, "overlaps").shown(), "no overlaps");
    }
}
