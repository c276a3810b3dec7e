//! `cargo xtask prove`: a line for each promise that takes too long for `test`.

use crate::bench::{Host, build};
use crate::mutants;
use crate::peers;
use crate::runner::{Done, counted};
use crate::scripts;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The promises, those of one engine together.
const LINES: &str = include_str!("../../benches/proof.toml");

/// The page with the verdicts.
const PAGE: &str = "docs/proof.md";

/// A promise and the program that measures it, as benches/proof.toml describes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    engine: String,
    promise: String,
    measure: Vec<String>,
    at_most: Option<f64>,
    at_least: Option<f64>,
    unit: String,
    limit: u64,
}

#[derive(Deserialize)]
struct Lines {
    line: Vec<Line>,
}

/// The last line of `fencepost-bench`.
#[derive(Deserialize)]
struct Measured {
    /// None when something went wrong that no figure tells.
    figure: Option<f64>,
    /// How it came about: counts, medians, the floor.
    note: String,
}

fn lines() -> Result<Vec<Line>, String> {
    let lines: Lines = toml::from_str(LINES).map_err(|error| format!("benches/proof.toml: {error}"))?;
    Ok(lines.line)
}

/// Returns the engines that have lines.
pub(crate) fn engines() -> Vec<String> {
    let mut engines: Vec<_> = lines().unwrap_or_default().into_iter().map(|line| line.engine).collect();
    engines.dedup();
    engines
}

/// Measures the lines of the engines (all, if there are none); false if one falls short.
pub(crate) fn prove(engines: &[String], only: &[String], write: bool) -> Result<bool, String> {
    let known = self::engines();
    if let Some(unknown) = engines.iter().find(|engine| !known.contains(engine)) {
        return Err(format!("nothing is to be proved for `{unknown}`; there is: {}", known.join(", ")));
    }
    let (workspace, lines) = (&Workspace::find(), lines()?);
    let wanted = |line: &&Line| {
        (engines.is_empty() || engines.contains(&line.engine))
            && (only.is_empty() || only.iter().any(|word| line.id.contains(word.as_str())))
    };
    let wanted: Vec<&Line> = lines.iter().filter(wanted).collect();
    // Scripts and clients need no bench, and the page keeps the host of the others.
    let (bench, host) = if wanted.iter().all(|line| line.needs_no_bench()) {
        (String::new(), None)
    } else {
        let bench = build(workspace)?;
        let host = Host::of(workspace, &bench)?.shown();
        (bench, Some(host))
    };
    let (mut measured, mut short) = (0, 0);
    for line in wanted {
        let (row, holds) = line.verdict(workspace, &bench);
        measured += 1;
        short += usize::from(!holds);
        // A run that is stopped keeps what it has measured.
        if only.is_empty() || write {
            workspace.write(PAGE, &page(&lines, host.as_deref(), &row, &workspace.read(PAGE)?)?)?;
        }
    }
    println!("{} hold, {short} fall short", measured - short);
    Ok(short == 0 && measured > 0)
}

/// The page with this row. The other lines keep their rows, and the introduction stays. So does the host, if there is no other one.
fn page(lines: &[Line], host: Option<&str>, row: &str, old: &str) -> Result<String, String> {
    let (intro, rest) = old.split_once("\nMeasured on").ok_or(format!("{PAGE} has no line `Measured on`"))?;
    let old_host = format!("Measured on{}", rest.split("\n\n").next().unwrap_or_default());
    let host = host.unwrap_or(&old_host);
    let mut page = format!(
        "{intro}\n{host}\n\n| | promised | bar | measured | how | verdict |\n|---|---|---|---|---|---|\n"
    );
    for line in lines {
        let start = line.row();
        let mut all = [row].into_iter().chain(old.lines());
        all.find(|row| row.starts_with(&start)).iter().for_each(|row| _ = writeln!(page, "{row}"));
    }
    Ok(page)
}

impl Line {
    /// Measures it, prints the verdict, and returns its row and whether it holds.
    fn verdict(&self, workspace: &Workspace, bench: &str) -> (String, bool) {
        print!("{}: {} … ", self.id, self.promise);
        // The line is finished when the measurement is.
        let _ = std::io::stdout().flush();
        let start = Instant::now();
        let found = self.run(workspace, bench);
        let took = start.elapsed().as_secs_f64();
        let (figure, note) = match found {
            Ok(Measured { figure, note }) => (figure, note),
            Err(message) => (None, message),
        };
        let holds = self.holds(figure);
        let measured =
            figure.map_or("not measured".to_owned(), |figure| format!("{} {}", number(figure), self.unit));
        println!(
            "{measured} (bar {}): {}, {took:.1} s\n    {note}",
            self.bar(),
            if holds { "holds" } else { "FALLS SHORT" }
        );
        let note = note.lines().next().unwrap_or_default().replace('|', "\\|");
        let word = if holds { "holds" } else { "**falls short**" };
        (format!("{} {} | {} | {measured} | {note} | {word} |", self.row(), self.promise, self.bar()), holds)
    }

    /// Whether the figure keeps to the bar. No figure never does.
    fn holds(&self, figure: Option<f64>) -> bool {
        let Some(figure) = figure else { return false };
        self.at_most.is_none_or(|limit| figure <= limit) && self.at_least.is_none_or(|limit| figure >= limit)
    }

    /// The bar in words.
    fn bar(&self) -> String {
        match (self.at_most, self.at_least) {
            (Some(0.0), _) => format!("no {}", self.unit),
            (Some(limit), _) => format!("≤ {} {}", number(limit), self.unit),
            (None, limit) => format!("≥ {} {}", number(limit.unwrap_or_default()), self.unit),
        }
    }

    /// The beginning of its row.
    fn row(&self) -> String {
        format!("| {} `{}` |", self.engine, self.id)
    }

    /// The script in `deploy/test` that the line runs, if it is one.
    fn script(&self) -> Option<&str> {
        match &self.measure[..] {
            [kind, script] if kind == "script" => Some(script),
            _ => None,
        }
    }

    fn needs_no_bench(&self) -> bool {
        let others = ["client", "mutants", "shuttle", "soak"];
        self.script().is_some() || self.measure.first().is_some_and(|kind| others.contains(&kind.as_str()))
    }

    /// Runs the program and reads its last line.
    fn run(&self, workspace: &Workspace, bench: &str) -> Result<Measured, String> {
        let measure: Vec<&str> = self.measure.iter().map(String::as_str).collect();
        let limit = Duration::from_secs(self.limit);
        if let ["test", package, test, cases] = measure[..] {
            let seed = fresh_seed();
            let arguments = ["test", "--package", package, "--lib", "--", test, "--exact"];
            let program = workspace.cargo(&self.id, &arguments).limit(limit);
            let output = program.env("FENCEPOST_CASES", cases).env("FENCEPOST_SEED", &seed).run()?;
            let passed = output.text.contains("1 passed");
            let measured = Measured { figure: cases.parse().ok(), note: format!("seeds from {seed} on") };
            return if passed { Ok(measured) } else { Err(format!("{package} has no test {test}")) };
        }
        if let ["shuttle", schedules] = measure[..] {
            return schedule(workspace, &self.id, schedules, limit);
        }
        if let ["mutants"] = measure[..] {
            let report = mutants::run(workspace, &self.id, limit)?;
            return Ok(Measured { figure: Some(report.unexplained as f64), note: report.note });
        }
        if let ["client", client] = measure[..] {
            return behaves(workspace, &self.id, client, limit);
        }
        if let ["soak", arguments @ ..] = &measure[..] {
            return soak(workspace, &self.id, arguments, limit);
        }
        if let Some(script) = self.script() {
            return scripts::run(workspace, &self.id, script, limit)
                .map(|checks| Measured { figure: Some(checks.len() as f64), note: checks.join("; ") });
        }
        let mut program = workspace.program(&self.id, bench, &measure).limit(limit);
        if measure.iter().any(|word| word.ends_with("-peers") || *word == "zookeeper-mixed") {
            // Those of Redis are a quorum's, too.
            let of = if self.engine == "redlock" { "redis" } else { &self.engine };
            let peers = peers::build(workspace, |engine| engine == of)?;
            program = program.env("FENCEPOST_PEERS", &peers.to_string_lossy());
        }
        last_line(&program.run()?.text, &measure)
    }
}

/// Runs what several threads of core share under random schedules: so many for each test, other ones every time.
fn schedule(workspace: &Workspace, step: &str, schedules: &str, limit: Duration) -> Result<Measured, String> {
    let seed = fresh_seed();
    let tests = ["test", "--package", "fencepost-core", "--lib", "--", "schedules::"];
    let program = workspace.cargo(step, &tests).limit(limit).env("RUSTFLAGS", "--cfg fencepost_shuttle");
    // A folder of its own, because the flag changes each crate.
    let program = program.env("CARGO_TARGET_DIR", &workspace.scratch("shuttle").to_string_lossy());
    let text = program.env("FENCEPOST_CASES", schedules).env("FENCEPOST_SEED", &seed).run()?.text;
    let Done::Passed(tests) = counted(&text)? else { return Err("no test ran".to_owned()) };
    Ok(Measured { figure: schedules.parse().ok(), note: format!("{tests}, seed {seed}") })
}

/// Another one every time. What it finds is replayed by its number.
fn fresh_seed() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() << 16).to_string()
}

/// Reads the result that a program has printed as its last object.
fn last_line(text: &str, measure: &[&str]) -> Result<Measured, String> {
    let last = text.lines().rev().find(|line| line.starts_with('{'));
    let last = last.ok_or_else(|| format!("{} printed no result", measure.join(" ")))?;
    serde_json::from_str(last).map_err(|error| format!("{last}: {error}"))
}

/// Runs all clients at once. A language that is not installed is a failure.
fn soak(workspace: &Workspace, step: &str, arguments: &[&str], limit: Duration) -> Result<Measured, String> {
    workspace.cargo(step, &["build", "--package", "fencepost-cli", "--bin", "fencepost"]).run()?;
    let binary = workspace.target().join("debug/fencepost");
    let program =
        workspace.program(step, "python3", &[&["clients/soak.py"], arguments].concat()).limit(limit);
    last_line(&program.env("FENCEPOST", &binary.to_string_lossy()).run()?.text, arguments)
}

/// Runs the cases of a client in another language. A language that is not installed is a failure.
fn behaves(workspace: &Workspace, step: &str, client: &str, limit: Duration) -> Result<Measured, String> {
    workspace.cargo(step, &["build", "--package", "fencepost-cli", "--bin", "fencepost"]).run()?;
    let binary = workspace.target().join("debug/fencepost");
    let program = workspace.program(step, "python3", &["clients/behave.py", client]).limit(limit);
    let text = program.env("FENCEPOST", &binary.to_string_lossy()).run()?.text;
    // `python: 30 passed, 0 failed, 1 skipped`
    let last = text.lines().rev().find(|line| line.contains(" passed, ")).unwrap_or_default();
    let figure = last.split(" passed, ").next().and_then(|begin| begin.rsplit(' ').next()?.parse().ok());
    Ok(Measured { figure, note: last.to_owned() })
}

/// Three significant digits, and whole numbers in full with their thousands apart.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size < 100.0 && value != value.trunc() {
        let decimals = if size >= 10.0 {
            1
        } else if size >= 1.0 {
            2
        } else {
            3
        };
        return format!("{value:.decimals$}");
    }
    let mut digits = format!("{value:.0}");
    let mut at = digits.len();
    while at > 3 + usize::from(value < 0.0) {
        at -= 3;
        digits.insert(at, ',');
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn numbers_are_shown_short() {
        let shown = [0.0, 5.0, 0.0612, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0, -0.5, -1234.0].map(number);
        assert_eq!(
            shown,
            ["0", "5", "0.061", "1.23", "12.3", "123", "1,234", "1,234,567", "-0.500", "-1,234"]
        );
    }

    #[test]
    fn a_page_keeps_what_was_not_measured() {
        let lines = lines().unwrap();
        let row = |line: &Line, measured: &str| format!("{} {measured} |", line.row());
        let old: Vec<String> = lines.iter().map(|line| row(line, "old")).collect();
        let before = format!("# Proof\n\nMeasured on b\n{}\n", old.join("\n"));
        let before = page(&lines, Some("Measured on a"), &old[0], &before).unwrap();
        let after = page(&lines, None, &row(&lines[1], "new"), &before).unwrap();
        let changed: Vec<&str> =
            after.lines().zip(before.lines()).filter(|(a, b)| a != b).map(|(a, _)| a).collect();
        assert_eq!(
            (changed, after.lines().count()),
            (vec![row(&lines[1], "new").as_str()], before.lines().count())
        );
    }

    #[test]
    fn each_line_has_its_own_name_one_bar_and_a_test_that_exists() {
        let lines = lines().unwrap();
        let mut ids: Vec<_> = lines.iter().map(|line| &line.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), lines.len());
        let mut engines = engines();
        let grouped = engines.len();
        engines.sort_unstable();
        engines.dedup();
        assert_eq!(engines.len(), grouped, "the lines of one engine stand together");
        for line in &lines {
            assert!(line.at_most.is_some() != line.at_least.is_some(), "{}", line.id);
            assert!(!line.holds(None) && line.holds(line.at_most.or(line.at_least)), "{}", line.id);
            if let Some(script) = line.script() {
                assert!(
                    Path::new("../deploy/test").join(script).exists(),
                    "{}: there is no {script}",
                    line.id
                );
            }
            let [kind, package, test, _] = &line.measure[..] else { continue };
            if kind == "test" {
                let (module, function) = test.rsplit_once("::").unwrap();
                let path = format!("../crates/{package}/src/{}", module.replace("::", "/"));
                let files = [format!("{path}.rs"), format!("{path}/mod.rs")];
                let source = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
                let declared = source.is_some_and(|source| source.contains(&format!("fn {function}()")));
                assert!(declared, "{}: {package} has no test {test}", line.id);
            }
        }
    }
}
