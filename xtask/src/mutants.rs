//! `cargo xtask prove mutants`: cargo-mutants changes core in one place at a time, and the tests have to notice each change.

use crate::process::{Output, Program, on_path};
use crate::workspace::{Workspace, fresh};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The version of cargo-mutants. Another one makes other mutants, and names some of them differently.
const VERSION: &str = "27.1.0";

/// The files to change, the tests to run, and the mutants that no test has to notice.
const PLAN: &str = "benches/mutants.toml";

/// The exit codes of a run that has tried all mutants: all were caught, some were missed, some ran into the time limit.
const TRIED: [i32; 3] = [0, 2, 3];

/// How often the progress is printed.
const PROGRESS: Duration = Duration::from_secs(60);

/// benches/mutants.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// Patterns of the files that are changed.
    files: Vec<String>,
    /// Regular expressions of the mutants that are not made.
    leave_out: Vec<String>,
    /// Which tests run on a mutant. A stage runs on what the stages before it have missed.
    stage: Vec<Stage>,
    #[serde(default)]
    survivor: Vec<Survivor>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stage {
    /// What runs, for the reader.
    tests: String,
    /// The packages whose tests are built.
    packages: Vec<String>,
    /// Arguments of cargo that choose their test programs, and the features that these need.
    programs: Vec<String>,
}

/// A mutant that no test notices, and why none has to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Survivor {
    mutant: String,
    reason: String,
}

/// What became of the mutants.
#[derive(Default)]
struct Counts {
    caught: usize,
    /// Their tests ran into the time limit, so these mutants were noticed, too.
    late: usize,
    /// They do not compile.
    unviable: usize,
}

/// What the line reports.
pub(crate) struct Report {
    /// How many mutants survived that benches/mutants.toml does not list.
    pub(crate) unexplained: usize,
    /// The counts, those mutants, and the listed ones that are caught or no longer exist.
    pub(crate) note: String,
}

fn plan() -> Result<Plan, String> {
    let plan: Plan = toml::from_str(include_str!("../../benches/mutants.toml"))
        .map_err(|error| format!("{PLAN}: {error}"))?;
    match plan.survivor.iter().find(|survivor| !survivor.reason.ends_with('.')) {
        Some(survivor) => Err(format!("{PLAN}: the reason for `{}` is no sentence", survivor.mutant)),
        None => Ok(plan),
    }
}

/// Tries all mutants within `limit`.
pub(crate) fn run(workspace: &Workspace, step: &str, limit: Duration) -> Result<Report, String> {
    if !on_path("cargo-mutants") {
        return Err(format!("first run `cargo install cargo-mutants --version {VERSION} --locked`"));
    }
    let found = workspace.cargo(step, &["mutants", "--version"]).run()?.text;
    if !found.contains(VERSION) {
        return Err(format!("cargo-mutants {VERSION} is needed, and this is {}", found.trim()));
    }
    let (plan, start, folder) = (plan()?, Instant::now(), workspace.scratch("mutants"));
    fresh(&folder)?;
    let results = folder.join("mutants.out");
    let (mut all, mut counts) = (Vec::new(), Counts::default());
    println!();
    for (number, stage) in plan.stage.iter().enumerate() {
        let left = limit.saturating_sub(start.elapsed());
        let program = stage.program(workspace, &plan, &format!("{step} {}", number + 1), &folder);
        shown(program.limit(left), &stage.tests, &results)?;
        if all.is_empty() {
            all = mutants(&read(&results.join("mutants.json"))?)?;
        }
        counts.caught += lines(&results, "caught.txt")?.len();
        counts.unviable += lines(&results, "unviable.txt")?.len();
        let late = lines(&results, "timeout.txt")?;
        counts.late += late.len();
        // The next stage leaves out what was caught, and would wait for the late ones once more.
        let caught = [lines(&results, "caught.txt")?, late].concat().join("\n");
        std::fs::write(results.join("caught.txt"), caught + "\n")
            .map_err(|error| format!("caught.txt: {error}"))?;
    }
    let missed = lines(&results, "missed.txt")?;
    report(&plan.survivor, &all, &missed, &counts)
}

impl Stage {
    fn program(&self, workspace: &Workspace, plan: &Plan, step: &str, folder: &Path) -> Program {
        let folder = folder.to_string_lossy();
        let mut arguments =
            vec!["mutants", "--iterate", "--output", &folder, "--colors", "never", "--jobs", "2"];
        arguments.extend(plan.files.iter().flat_map(|file| ["--file", file]));
        arguments.extend(plan.leave_out.iter().flat_map(|mutant| ["--exclude-re", mutant]));
        arguments.extend(self.packages.iter().flat_map(|package| ["--test-package", package]));
        // Each job builds in a copy of the tree, also where `CARGO_TARGET_DIR` names a folder for all builds.
        let target = ["--target-dir=target", "--config", RUNNER];
        let programs = self.programs.iter().map(String::as_str);
        // The run without a mutant takes the package of the mutants alone, and would not find the programs of another one.
        let packages: Vec<String> =
            self.packages.iter().map(|package| format!("--package={package}")).collect();
        let packages = packages.iter().map(String::as_str);
        arguments
            .extend(packages.chain(programs).chain(target).flat_map(|argument| ["--cargo-arg", argument]));
        // A test that fails is enough.
        arguments.extend(["--", "--", "-Zunstable-options", "--fail-fast"]);
        // Little of core changes with a mutant.
        workspace.cargo(step, &arguments).good(&TRIED).env("CARGO_INCREMENTAL", "1")
    }
}

/// The harness takes its option `--fail-fast` from stable compilers only with this variable. Nothing is compiled with it.
const RUNNER: &str = "target.'cfg(all())'.runner = ['env', 'RUSTC_BOOTSTRAP=1']";

/// Runs a stage, and prints how far it is.
fn shown(program: Program, tests: &str, results: &Path) -> Result<Output, String> {
    let count = |file| lines(results, file).map_or(0, |lines| lines.len());
    let (running, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
                let tried = ["caught.txt", "timeout.txt", "unviable.txt"].map(count).iter().sum::<usize>();
                let (missed, all) = (count("missed.txt"), read(&results.join("mutants.json")));
                let all = all.and_then(|all| mutants(&all)).map_or(0, |all| all.len());
                println!("    {tests}: {} of {all} mutants tried, {missed} missed", tried + missed);
            }
        });
        let outcome = program.run();
        drop(running);
        outcome
    })
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The mutants that cargo-mutants lists in one of its files.
fn lines(results: &Path, file: &str) -> Result<Vec<String>, String> {
    Ok(read(&results.join(file))?.lines().map(str::to_owned).collect())
}

/// The mutants of `mutants.json`, as the lists name them.
fn mutants(json: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Mutant {
        name: String,
    }
    let mutants: Vec<Mutant> =
        serde_json::from_str(json).map_err(|error| format!("mutants.json: {error}"))?;
    Ok(mutants.into_iter().map(|mutant| mutant.name).collect())
}

/// Gives each mutant a name that does not change with the lines before it: its file and its change. Where a function can be changed in
/// the same way in several places, their number follows.
fn names(all: &[String]) -> Result<HashMap<&str, String>, String> {
    // By file and change: line, column, and the whole text.
    type Places<'a> = Vec<(u32, u32, &'a str)>;
    let mut places: HashMap<(&str, &str), Places<'_>> = HashMap::new();
    for mutant in all {
        let parts = || {
            let (file, rest) = mutant.split_once(':')?;
            let (line, rest) = rest.split_once(':')?;
            let (column, change) = rest.split_once(": ")?;
            Some((file, change, line.parse().ok()?, column.parse().ok()?))
        };
        let (file, change, line, column) = parts().ok_or_else(|| format!("`{mutant}` names no place"))?;
        places.entry((file, change)).or_default().push((line, column, mutant));
    }
    let mut names = HashMap::new();
    for ((file, change), mut places) in places {
        places.sort_unstable();
        let count = places.len();
        for (number, (_, _, mutant)) in (1..).zip(places) {
            let place = if count > 1 { format!(" ({number} of {count})") } else { String::new() };
            names.insert(mutant, format!("{file}: {change}{place}"));
        }
    }
    Ok(names)
}

/// Compares what survived with the list.
fn report(listed: &[Survivor], all: &[String], missed: &[String], counts: &Counts) -> Result<Report, String> {
    let names = names(all)?;
    let name = |mutant: &String| {
        names.get(mutant.as_str()).cloned().ok_or_else(|| format!("`{mutant}` was not made"))
    };
    let survived: Vec<String> = missed.iter().map(name).collect::<Result<_, _>>()?;
    let unexplained: Vec<&String> =
        survived.iter().filter(|name| listed.iter().all(|survivor| survivor.mutant != **name)).collect();
    let Counts { caught, late, unviable } = counts;
    let mut note = format!(
        "{} mutants: {caught} caught, {late} ran into the time limit, {unviable} do not compile, {} survive for a reason in {PLAN}",
        all.len(),
        survived.len() - unexplained.len()
    );
    let mut more: Vec<String> = unexplained.iter().map(|name| format!("not noticed: {name}")).collect();
    for Survivor { mutant, .. } in listed.iter().filter(|survivor| !survived.contains(&survivor.mutant)) {
        let known = names.values().any(|name| name == mutant);
        let why = if known { "caught" } else { "no mutant" };
        more.push(format!("listed in {PLAN}, but {why}: {mutant}"));
    }
    let stale = more.len() - unexplained.len();
    if stale > 0 {
        note += &format!("; {stale} more are listed there without need");
    }
    more.iter().for_each(|line| note += &format!("\n    {line}"));
    Ok(Report { unexplained: unexplained.len(), note })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    /// Two places of one function that can be changed in the same way, and one of another.
    const ALL: [&str; 4] = [
        "a.rs:9:30: replace + with - in f",
        "a.rs:9:4: replace + with - in f",
        "a.rs:12:5: replace + with - in f",
        "a.rs:20:5: replace g -> Result<()> with Ok(())",
    ];

    #[test]
    fn a_mutant_keeps_its_name_when_lines_are_inserted_before_it() {
        let (all, later) = (owned(&ALL), ALL.map(|name| name.replace("a.rs:", "a.rs:1")).to_vec());
        let (names, after) = (names(&all).unwrap(), names(&later).unwrap());
        let expected = [
            "a.rs: replace + with - in f (2 of 3)",
            "a.rs: replace + with - in f (1 of 3)",
            "a.rs: replace + with - in f (3 of 3)",
            "a.rs: replace g -> Result<()> with Ok(())",
        ];
        assert_eq!(ALL.map(|name| names[name].as_str()), expected);
        for (before, later) in all.iter().zip(&later) {
            assert_eq!(names[before.as_str()], after[later.as_str()]);
        }
    }

    #[test]
    fn survivors_that_are_not_listed_and_lines_of_the_list_without_need_are_reported() {
        let survivor = |mutant: &str| Survivor { mutant: mutant.to_owned(), reason: "because".to_owned() };
        let listed = [
            "a.rs: replace + with - in f (2 of 3)",
            "a.rs: replace g -> Result<()> with Ok(())",
            "a.rs: replace h with ()",
        ]
        .map(survivor);
        let (all, missed) = (owned(&ALL), owned(&ALL[..2]));
        let counts = Counts { caught: 1, late: 1, unviable: 0 };
        let report = report(&listed, &all, &missed, &counts).unwrap();
        assert_eq!(report.unexplained, 1);
        let lines: Vec<&str> = report.note.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "4 mutants: 1 caught, 1 ran into the time limit, 0 do not compile, 1 survive for a reason in \
                 benches/mutants.toml; 2 more are listed there without need",
                "not noticed: a.rs: replace + with - in f (1 of 3)",
                "listed in benches/mutants.toml, but caught: a.rs: replace g -> Result<()> with Ok(())",
                "listed in benches/mutants.toml, but no mutant: a.rs: replace h with ()",
            ]
        );
    }

    #[test]
    fn the_lists_of_cargo_mutants_are_read() {
        let json = r#"[{"name": "a.rs:1:2: replace f with ()", "package": "a", "genre": "FnValue"}]"#;
        assert_eq!(mutants(json).unwrap(), ["a.rs:1:2: replace f with ()"]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("missed.txt"), "a.rs:1:2: b\na.rs:3:4: c\n").unwrap();
        assert_eq!(lines(folder.path(), "missed.txt").unwrap(), ["a.rs:1:2: b", "a.rs:3:4: c"]);
        assert!(lines(folder.path(), "caught.txt").is_err(), "a stage that was stopped proves nothing");
        assert!(names(&owned(&["a.rs: no place"])).is_err());
    }

    #[test]
    fn each_survivor_is_listed_once_with_a_reason_and_in_a_file_that_exists() {
        let plan = plan().unwrap();
        let mut mutants: Vec<&str> = plan.survivor.iter().map(|survivor| survivor.mutant.as_str()).collect();
        mutants.sort_unstable();
        mutants.dedup();
        assert_eq!(mutants.len(), plan.survivor.len());
        for Survivor { mutant, .. } in &plan.survivor {
            let file = mutant.split(':').next().unwrap();
            assert!(Path::new("..").join(file).is_file(), "{mutant}");
        }
        for Stage { tests, packages, .. } in &plan.stage {
            assert!(packages.iter().all(|package| Path::new("../crates").join(package).is_dir()), "{tests}");
        }
    }
}
