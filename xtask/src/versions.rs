//! `cargo xtask prove versions`: the tests of the command and the conformance suite on other versions of the servers. The table of each
//! page in docs/backends shows the results.

use crate::process::Program;
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A kind of server, as benches/servers/servers.json lists it.
#[derive(Deserialize)]
struct Server {
    /// Its page in docs/backends.
    page: String,
    /// The variable by which the tests find its programs.
    variable: String,
    /// The tests of the command that need it, by parts of their names. Empty: the command has the engine only in a build that asks for it.
    command: Vec<String>,
    /// The package of its engine.
    package: String,
    /// The programs of the suite in that package.
    suites: Vec<String>,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    /// The registry and its package.
    from: String,
    /// The arguments of benches/servers/fetch.sh.
    fetch: Vec<String>,
    /// Programs of the suite, and parts of names of tests, that need what this version lacks. `note` says what that is.
    #[serde(default)]
    skip: Vec<String>,
    #[serde(default)]
    note: String,
}

/// The time for the tests of one version.
const LIMIT: Duration = Duration::from_secs(3_600);

/// The lines around the table of a page.
const MARKS: [&str; 2] =
    ["<!-- versions: written by `cargo xtask prove versions` -->", "<!-- end of versions -->"];

/// Tries the versions whose name or source contains one of the words (all, if there are none). Returns false if a test fails.
pub(crate) fn versions(words: &[String]) -> Result<bool, String> {
    let workspace = &Workspace::find();
    let (mut hold, mut fail) = (0, 0);
    for server in servers()? {
        for version in &server.versions {
            let label = format!("{} from {}", version.name, version.from);
            if !words.is_empty() && !words.iter().any(|word| label.to_lowercase().contains(word.as_str())) {
                continue;
            }
            println!("{label}");
            let outcome = server.attempt(workspace, version).and_then(|(number, command, suite)| {
                let holds = command.iter().chain([&suite]).all(|outcome| outcome.failed.is_empty());
                let shown = command.map_or_else(|| "not tested".to_owned(), |command| command.shown());
                println!("    {number}: command {shown}; suite {}", suite.shown());
                let Version { name, note, from, .. } = version;
                let row = format!("| {name} {number}{note} | {shown} | {} | {from} |", suite.shown());
                server.write(workspace, &row).map(|()| holds)
            });
            let holds = outcome.unwrap_or_else(|message| {
                println!("    not tried: {message}");
                false
            });
            if holds { hold += 1 } else { fail += 1 }
        }
    }
    println!("{hold} hold, {fail} fail");
    Ok(fail == 0 && hold > 0)
}

fn servers() -> Result<Vec<Server>, String> {
    serde_json::from_str(include_str!("../../benches/servers/servers.json"))
        .map_err(|error| format!("servers.json: {error}"))
}

impl Server {
    /// Fetches a version if it is not there, and runs the tests of the command and the suite on it.
    fn attempt(
        &self,
        workspace: &Workspace,
        version: &Version,
    ) -> Result<(String, Option<Outcome>, Outcome), String> {
        let arguments: Vec<&str> = version.fetch.iter().map(String::as_str).collect();
        let folder = workspace.scratch("versions").join(arguments.join("-"));
        if !folder.join("version").exists() {
            let script = workspace.root().join("benches/servers/fetch.sh").to_string_lossy().into_owned();
            let place = folder.to_string_lossy();
            let arguments = [&[script.as_str(), &place], &arguments[..]].concat();
            workspace.program("versions fetch", "sh", &arguments).run()?;
        }
        let number = fs::read_to_string(folder.join("version")).map_err(|error| error.to_string())?;
        let number = number.trim().to_owned();
        let tests = |what: &str, arguments: &[&str]| {
            let step = format!("versions {} {number} {what}", self.page);
            let common = ["test", "--no-fail-fast", "--features", "fencepost-core/metrics"];
            let program = workspace.cargo(&step, &[&common, arguments].concat()).limit(LIMIT);
            let programs = folder.join("bin").to_string_lossy().into_owned();
            Outcome::of(program.env(&self.variable, &programs), &workspace.log(&step))
        };
        let mut command = vec!["--package", "fencepost-cli", "--test", "cli", "--"];
        command.extend(self.command.iter().map(String::as_str));
        command.extend(version.skip.iter().flat_map(|test| ["--skip", test]));
        let mut suite = vec!["--package", &self.package];
        let suites = self.suites.iter().filter(|suite| !version.skip.contains(suite));
        suite.extend(suites.flat_map(|suite| ["--test", suite]));
        suite.extend(["--", "--show-output"]);
        let has_command = !self.command.is_empty();
        let command = has_command.then(|| tests("command", &command)).transpose()?;
        let suite = tests("suite", &suite)?;
        Ok((number, command, suite))
    }

    /// Puts a row into the table of the page. The other rows stay.
    fn write(&self, workspace: &Workspace, row: &str) -> Result<(), String> {
        let file = format!("docs/backends/{}.md", self.page);
        let origins: Vec<&str> = self.versions.iter().map(|version| version.from.as_str()).collect();
        let page = with_row(&workspace.read(&file)?, &origins, row);
        workspace.write(&file, &page.ok_or_else(|| format!("{file} has no line {}", MARKS[0]))?)
    }
}

/// Returns the page with this row. A row belongs to the version that its last cell names.
fn with_row(page: &str, origins: &[&str], row: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (old, after) = rest.split_once(MARKS[1])?;
    let mut table = String::from("| server | the command | the suite | program |\n|---|---|---|---|\n");
    for origin in origins {
        let end = format!("| {origin} |");
        let kept = [row].into_iter().chain(old.lines()).find(|line| line.ends_with(&end));
        kept.iter().for_each(|line| _ = writeln!(table, "{line}"));
    }
    Some(format!("{before}{}\n\n{table}\n{}{after}", MARKS[0], MARKS[1]))
}

/// The outcome of some tests.
#[derive(Default)]
struct Outcome {
    passed: usize,
    /// Cases that need what the engine lacks, and tests that are ignored.
    skipped: usize,
    failed: Vec<String>,
}

impl Outcome {
    /// Runs tests. One that fails is no error: `log`, the output, has its name.
    fn of(program: Program, log: &Path) -> Result<Outcome, String> {
        let result = program.run();
        let text = fs::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let outcome = Outcome::read(&String::from_utf8_lossy(&text));
        match result {
            Err(message) if outcome.failed.is_empty() => Err(message),
            _ if outcome.passed == 0 => Err(format!("no test passed: {}", log.display())),
            _ => Ok(outcome),
        }
    }

    fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        let mut excused = 0;
        for line in text.lines() {
            match line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
                Some((_, "ok")) => outcome.passed += 1,
                Some((name, "FAILED")) => outcome.failed.push(format!("`{name}`")),
                Some((_, end)) => outcome.skipped += usize::from(end.starts_with("ignored")),
                None => excused += usize::from(line.starts_with("excused: ")),
            }
        }
        outcome.passed = outcome.passed.saturating_sub(excused);
        outcome.skipped += excused;
        outcome
    }

    fn shown(&self) -> String {
        let counts = format!("{} passed, {} skipped", self.passed, self.skipped);
        match self.failed.len() {
            0 => format!("{counts}, 0 failed"),
            failed => format!("{counts}, **{failed} failed**: {}", self.failed.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let text = "test a ... ok\ntest b ... ok\nexcused: b needs permits\ntest c ... FAILED\ntest d ... ignored, why\n";
        assert_eq!(Outcome::read(text).shown(), "1 passed, 2 skipped, **1 failed**: `c`");
        assert_eq!(Outcome::read("test a ... ok").shown(), "1 passed, 0 skipped, 0 failed");
    }

    #[test]
    fn a_row_takes_the_place_of_its_version() {
        let page = format!("one\n{}\n| old | | | npm b |\n{}\ntwo\n", MARKS[0], MARKS[1]);
        let page = with_row(&page, &["npm a", "npm b"], "| x | | | npm a |").unwrap();
        assert!(page.contains("| x | | | npm a |\n| old | | | npm b |\n"), "{page}");
        let page = with_row(&page, &["npm a", "npm b"], "| new | | | npm b |").unwrap();
        assert!(page.contains("| x | | | npm a |\n| new | | | npm b |\n") && !page.contains("old"), "{page}");
        assert!(page.starts_with("one\n") && page.ends_with("\ntwo\n"), "{page}");
        assert_eq!(with_row("a page", &["npm a"], "| x | | | npm a |"), None);
    }

    #[test]
    fn every_page_has_a_place_for_its_table() {
        for server in servers().unwrap() {
            let page = fs::read_to_string(format!("../docs/backends/{}.md", server.page)).unwrap();
            assert!(with_row(&page, &[], "").is_some(), "{}", server.page);
        }
    }
}
