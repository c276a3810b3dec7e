//! `cargo xtask prove`: a line for each point of the bar that is too long for `test`.

use crate::bench::{Host, build};
use crate::line::Line;
use crate::lines::LINES;
use crate::workspace::Workspace;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

/// The outcome of one line.
struct Verdict {
    line: &'static Line,
    measured: String,
    note: String,
    holds: bool,
}

/// Returns the engines that have lines.
pub(crate) fn engines() -> Vec<&'static str> {
    let mut engines: Vec<_> = LINES.iter().map(|line| line.engine).collect();
    engines.dedup();
    engines
}

/// Measures the lines of the engines (all, if there are none); false if one falls short.
pub(crate) fn prove(engines: &[String], only: &[String], write: bool) -> Result<bool, String> {
    let known = self::engines();
    if let Some(unknown) = engines.iter().find(|engine| !known.contains(&engine.as_str())) {
        return Err(format!("nothing is to be proved for `{unknown}`; there is: {}", known.join(", ")));
    }
    let workspace = &Workspace::find();
    let bench = build(workspace)?;
    let mut verdicts = Vec::new();
    for line in LINES.iter().copied() {
        let wanted = engines.is_empty() || engines.iter().any(|engine| engine == line.engine);
        let chosen = only.is_empty() || only.iter().any(|word| line.id.contains(word.as_str()));
        if wanted && chosen {
            verdicts.push(verdict(workspace, &bench, line));
        }
    }
    let short = verdicts.iter().filter(|verdict| !verdict.holds).count();
    if only.is_empty() || write {
        let path = workspace.root().join("docs/proof.md");
        // Without it there is nothing to keep.
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let page = page(&Host::of(workspace, &bench)?, &verdicts, &old);
        std::fs::write(path, page).map_err(|error| format!("docs/proof.md: {error}"))?;
        println!("\nwrote docs/proof.md");
    }
    println!("{} hold, {short} fall short", verdicts.len() - short);
    Ok(short == 0 && !verdicts.is_empty())
}

fn verdict(workspace: &Workspace, bench: &str, line: &'static Line) -> Verdict {
    print!("{}: {} … ", line.id, line.promise);
    // The line is finished when the measurement is.
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let outcome = line.run(workspace, bench);
    let took = start.elapsed().as_secs_f64();
    let verdict = match outcome {
        Ok(found) => Verdict {
            line,
            measured: line.bound.figure(found.figure),
            note: found.note,
            holds: line.bound.holds(found.figure),
        },
        Err(message) => Verdict { line, measured: "not measured".to_owned(), note: message, holds: false },
    };
    let word = if verdict.holds { "holds" } else { "FALLS SHORT" };
    println!("{} (bar {}): {word}, {took:.1} s\n    {}", verdict.measured, line.bound.shown(), verdict.note);
    verdict
}

/// The page with these verdicts; lines that were not measured now keep their rows of the page before.
fn page(host: &Host, verdicts: &[Verdict], old: &str) -> String {
    let mut page = String::from(
        "# Proof\n\nThe promises, the measured figures and the verdicts. `cargo xtask prove` measures every line again and writes\n\
         this page. `cargo xtask prove ENGINE` measures the lines of one engine. It fails when a line falls short.\n\
         [Benchmarks](benchmarks.md) has some of these figures from runs of its own, at another time: there they differ.\n\n",
    );
    // Writing to a string does not fail.
    let _ = writeln!(page, "{}\n", host.shown());
    page.push_str("| | promised | bar | measured | how | verdict |\n|---|---|---|---|---|---|\n");
    for line in LINES.iter().copied() {
        let Some(verdict) = verdicts.iter().find(|verdict| verdict.line.id == line.id) else {
            let start = row(line);
            old.lines().filter(|row| row.starts_with(&start)).for_each(|row| _ = writeln!(page, "{row}"));
            continue;
        };
        let note = verdict.note.lines().next().unwrap_or_default().replace('|', "\\|");
        let word = if verdict.holds { "holds" } else { "**falls short**" };
        let _ = writeln!(
            page,
            "{} {} | {} | {} | {note} | {word} |",
            row(line),
            line.promise,
            line.bound.shown(),
            verdict.measured
        );
    }
    page
}

/// Returns the beginning of the row of a line.
fn row(line: &Line) -> String {
    format!("| {} `{}` |", line.engine, line.id)
}

#[cfg(test)]
mod tests {
    use super::{Host, LINES, Verdict, page, row};

    #[test]
    fn a_page_keeps_what_was_not_measured() {
        let verdict = |line: usize, measured: &str| Verdict {
            line: LINES[line],
            measured: measured.to_owned(),
            note: "a note".to_owned(),
            holds: true,
        };
        let host = Host::default();
        let all: Vec<Verdict> = (0..LINES.len()).map(|line| verdict(line, "old")).collect();
        let before = page(&host, &all, "");
        let after = page(&host, &[verdict(1, "new")], &before);
        let changed: Vec<&str> =
            after.lines().zip(before.lines()).filter(|(a, b)| a != b).map(|(a, _)| a).collect();
        assert_eq!(after.lines().count(), before.lines().count());
        assert!(changed.len() == 1 && changed[0].starts_with(&row(LINES[1])) && changed[0].contains("new"));
    }

    #[test]
    fn every_line_has_a_name_of_its_own_and_stands_with_its_engine() {
        let mut ids: Vec<_> = LINES.iter().map(|line| line.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), LINES.len());
        let mut engines = super::engines();
        let grouped = engines.len();
        engines.sort_unstable();
        engines.dedup();
        assert_eq!(engines.len(), grouped, "the lines of one engine stand together");
    }

    #[test]
    fn the_test_of_a_line_exists() {
        let mut tests = 0;
        for line in LINES.iter() {
            let ["test", package, test, _] = line.measure else { continue };
            let (module, function) = test.rsplit_once("::").unwrap();
            let path = format!("../crates/{package}/src/{}", module.replace("::", "/"));
            let files = [format!("{path}.rs"), format!("{path}/mod.rs")];
            let source = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
            let declared = source.is_some_and(|source| source.contains(&format!("fn {function}()")));
            assert!(declared, "{}: {package} has no test {test}", line.id);
            tests += 1;
        }
        assert!(tests > 0);
    }
}
