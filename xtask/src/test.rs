//! `cargo xtask test`: everything that must hold before a change is merged.

use crate::process::{FOLDER, Program};
use crate::runner::{Done, Runner, Work, counted, passed};
use crate::test_programs::{self, Load, TestProgram};
use crate::workspace::Workspace;
use crate::{dist, drivers, features, layout, manifests, packages, python, readme, rustdoc, tree};
use nix::sys::statvfs::statvfs;
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use tempfile::TempDir;

/// How many tests of a program the harness runs at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// Whether cargo keeps what an incremental build reads.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// The options of a run.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// Missing Debian packages are installed.
    pub(crate) install: bool,
    /// Checks of other builds run as well.
    pub(crate) all: bool,
    /// The names of the steps are printed, and nothing runs.
    pub(crate) list: bool,
}

/// The steps of `cargo xtask test quick`.
fn quick(workspace: &Workspace) -> bool {
    let mut run = Runner::new(&[], false);
    run.step("format", || format(workspace));
    run.step("lint", || clippy(workspace, &[]));
    // As cargo builds them, because who uses this also tests by cargo alone.
    let tests_of = |package, which: &[&str]| {
        counted_tests(workspace, workspace.cargo("quick", &[&["test", "--package", package], which].concat()))
    };
    run.step("tests of core", || tests_of("fencepost-core", &["--lib", "--tests"]));
    run.step("suite on memory", || tests_of("fencepost-testkit", &["--test", "conformance"]));
    run.step("suite on SQLite", || tests_of("fencepost-sqlite", &["--test", "conformance"]));
    run.finish()
}

/// Runs a command that runs tests.
fn counted_tests(workspace: &Workspace, tests: Program) -> Result<Done, String> {
    let skips = Skips::new(workspace)?;
    skips.counted(&threads(skips.told_to(tests), Load::Runs).run()?.text)
}

fn format(workspace: &Workspace) -> Result<Done, String> {
    workspace.cargo("format", &["fmt", "--all", "--", "--check"]).run()?;
    passed()
}

/// A cargo command that builds the workspace's own crates with clippy.
///
/// Clippy is the compiler with more lints, so one build is enough for the tests and the lint. `cargo clippy` would read all crates again,
/// and those of others as well, because it shares no artifacts with a build. Each command that shares the build needs this.
fn linted(workspace: &Workspace, step: &str, arguments: &[&str]) -> Program {
    let cargo = workspace.cargo(step, arguments).env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // To keep what an incremental build would read takes a fifth of the time of a first build.
    if std::env::var_os(INCREMENTAL).is_some() { cargo } else { cargo.env(INCREMENTAL, "0") }
}

/// Returns what cargo says of the build of all tests: its programs, and the warnings, which it repeats for what it does not build again.
fn build_messages(workspace: &Workspace) -> Result<String, String> {
    let arguments = [&ALL_TESTS[..], &["--no-run", "--message-format=json"]].concat();
    Ok(linted(workspace, "messages of the build", &arguments).run()?.text)
}

/// Fails on a warning of the build that the tests are from. Builds them first if there are no messages yet.
fn lint(workspace: &Workspace, messages: &str) -> Result<Done, String> {
    let built;
    let messages = if messages.is_empty() {
        built = build_messages(workspace)?;
        &built
    } else {
        messages
    };
    let warnings: Vec<String> = warnings(messages).collect();
    if warnings.is_empty() { passed() } else { Err(warnings.join("\n")) }
}

/// The warnings in the messages of cargo, as people read them.
fn warnings(text: &str) -> impl Iterator<Item = String> {
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let warnings = messages.filter(|message| message["message"]["level"] == "warning");
    warnings.map(|message| message["message"]["rendered"].as_str().unwrap_or_default().to_owned())
}

/// Lints without a build of the tests.
fn clippy(workspace: &Workspace, features: &[&str]) -> Result<Done, String> {
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets"];
    workspace.cargo("clippy", &[&clippy, features, &["--", "-D", "warnings"]].concat()).run()?;
    passed()
}

/// Documents each library and finds links that lead nowhere.
///
/// The examples' command calls rustdoc for each library with its dependencies as they were built. `cargo doc` would read all of these
/// again, because it shares no artifacts with a build.
fn documentation(workspace: &Workspace) -> Result<Done, String> {
    let program = std::env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    let folder = workspace.scratch("documentation");
    let examples = documentation_examples_command(workspace, "documentation");
    let examples = examples.env("RUSTDOC", &program.to_string_lossy());
    examples.env(rustdoc::FOLDER, &folder.to_string_lossy()).run()?;
    passed()
}

/// Documents programs as well, and what all features have.
fn whole_documentation(workspace: &Workspace) -> Result<Done, String> {
    let arguments =
        ["doc", "--quiet", "--workspace", "--all-features", "--no-deps", "--document-private-items"];
    workspace.cargo("rustdoc on all features", &arguments).env("RUSTDOCFLAGS", "-D warnings").run()?;
    passed()
}

fn documentation_examples(workspace: &Workspace) -> Result<Done, String> {
    counted(&documentation_examples_command(workspace, "documentation examples").run()?.text)
}

fn documentation_examples_command(workspace: &Workspace, step: &str) -> Program {
    linted(workspace, step, &[&["test", "--workspace", "--doc"], &FEATURES[..]].concat())
}

/// Fails if another run writes into the same logs and lists. The file is locked until it is dropped.
fn alone(workspace: &Workspace) -> Result<File, String> {
    let path = workspace.scratch("lock");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(workspace.scratch("")).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another `cargo xtask test` runs in this folder".to_owned()),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Runs the steps; false if one failed.
pub(crate) fn test(only: &[String], extent: Extent) -> Result<bool, String> {
    let workspace = &Workspace::find();
    let _alone = if extent.list { None } else { Some(alone(workspace)?) };
    if only == ["quick"] {
        return Ok(quick(workspace));
    }
    let mut run = Runner::new(only, extent.list);

    run.step("packages of the system", || packages::packages(workspace, extent.install));
    run.step("files of the tree", || tree::checks(workspace));
    run.step("layout", || layout::layout(workspace));
    run.step("format", || format(workspace));
    // What cargo says of the build; empty if it was not asked for.
    let mut messages = String::new();
    let built = || {
        linted(workspace, "tests are built", &[&ALL_TESTS[..], &["--no-run"]].concat()).run()?;
        // Before other steps have cargo build in the same folder, which would hold up the tests.
        messages = build_messages(workspace)?;
        passed()
    };
    // The manifests wait for packages of Python, and the build now and then for one crate that all others need.
    let manifests: Work<'_> = Box::new(|| manifests::manifests(workspace));
    run.step_beside("tests are built", built, vec![("manifests", manifests)]);
    let messages = &messages;
    // The tests wait for a third of their time. These steps compile, and so wait for nothing. They may be held up for as long as it
    // takes, so none of them has a test whose time is limited.
    let beside: Vec<(&str, Work<'_>)> = vec![
        ("lint", Box::new(|| lint(workspace, messages))),
        ("documentation", Box::new(|| documentation(workspace))),
        ("README's commands", Box::new(|| readme::check(workspace, extent.all))),
    ];
    run.step_beside("tests", || tests(workspace, messages), beside);
    run.step("documentation examples", || documentation_examples(workspace));
    // A step that is named runs as well.
    if extent.all || extent.list || !only.is_empty() {
        run.step("clippy on all features", || clippy(workspace, &["--all-features"]));
        run.step("rustdoc on all features", || whole_documentation(workspace));
        run.step("licences and sources", || features::deny(workspace, extent.install));
        run.step("packages", || features::packages(workspace));
        run.step("each feature alone", || features::alone(workspace));
        run.step("macOS", || features::macos(workspace));
        run.step("portable", || features::portable(workspace));
        run.step("oldest Rust", || features::oldest_rust(workspace));
        run.step("both ends of the driver's range", || drivers::both_ends(workspace));
        run.step("beside other users of SQLite", || drivers::beside(workspace));
        let ignored = |step, program, which: &[&str]| {
            let arguments =
                ["test", "--workspace", FEATURES[0], FEATURES[1], "--test", program, "--", "--ignored"];
            counted_tests(workspace, linted(workspace, step, &[&arguments, which].concat()))
        };
        run.step("whole suite on each deployment", || ignored("whole suite", "conformance", &["whole::"]));
        run.step("own tests of the clients", || ignored("own tests", "clients", &[]));
        run.step("static binary", || dist::check(workspace));
    }
    Ok(run.finish())
}

/// How many test programs run at a time. Most of their tests wait for a lease to end or a server to start, so that two cores have time for
/// four programs: with three at a time they were idle for an eighth of the run.
const LANES: usize = 4;

/// The tests of these features need them, and the others do not mind them.
const FEATURES: [&str; 2] = [
    "--features",
    "fencepost/blocking,fencepost/macros,fencepost-core/metrics,fencepost-cli/otlp,fencepost-http/otlp",
];

/// Runs all tests but those in documentation. Tests that need a missing program are skipped, and counted.
fn tests(workspace: &Workspace, messages: &str) -> Result<Done, String> {
    let programs = TestProgram::all(messages)?;
    let skips = Skips::new(workspace)?;
    let memory = memory();
    // It has the packages of the examples in Python. Without a network these examples are skipped.
    let python = python::program(workspace, "python3").ok();
    let text = test_programs::run(workspace, programs, LANES, |program, load| {
        let tests = skips.told_to(threads(program, load));
        let tests = match &python {
            Some(python) => tests.env("FENCEPOST_PYTHON", python),
            None => tests,
        };
        match &memory {
            Some(memory) => tests.env("TMPDIR", &memory.path().to_string_lossy()),
            None => tests,
        }
    })?;
    skips.counted(&text)
}

/// The tests that are skipped, for want of a program or of a right. The harness counts them as passed.
struct Skips {
    list: PathBuf,
    /// All programs are there, and a test that finds none fails.
    complete: bool,
}

impl Skips {
    fn new(workspace: &Workspace) -> Result<Skips, String> {
        let (list, complete) = (workspace.scratch("skipped-tests"), packages::missing().is_empty());
        std::fs::write(&list, "").map_err(|error| format!("{}: {error}", list.display()))?;
        Ok(Skips { list, complete })
    }

    /// Tells the tests where to note that they are skipped.
    fn told_to(&self, tests: Program) -> Program {
        let tests = tests.env("FENCEPOST_SKIPPED", &self.list.to_string_lossy());
        if self.complete { tests.env("FENCEPOST_PROGRAMS", "required") } else { tests }
    }

    /// Counts the tests that ran, and those of them that were skipped.
    fn counted(&self, text: &str) -> Result<Done, String> {
        let Done::Passed(count) = counted(text)? else { return passed() };
        let list = std::fs::read_to_string(&self.list).unwrap_or_default();
        Ok(Done::Passed(match list.lines().count() {
            0 => count,
            skipped => format!("{count}, of which {skipped} were skipped"),
        }))
    }
}

/// The arguments of cargo for all tests but those in documentation.
const ALL_TESTS: [&str; 5] = ["test", "--workspace", "--all-targets", FEATURES[0], FEATURES[1]];

/// The free memory that the tests need for their files: the servers that run at one time take up to 2 GiB.
const MEMORY: u64 = 4 << 30;

/// Makes a folder in memory. A server that waits for a slow disk answers later than the tests allow. None if there is too little: a
/// container often gives 64 MiB.
fn memory() -> Option<TempDir> {
    let room = statvfs("/dev/shm").ok()?;
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10;
    let room = room.blocks_available() * room.fragment_size();
    let make = || tempfile::Builder::new().prefix("fencepost-test-").tempdir_in("/dev/shm").ok();
    let folder = (room.min(available) >= MEMORY).then(make)??;
    // A run has one such folder.
    let _ = FOLDER.set(folder.path().to_path_buf());
    Some(folder)
}

/// Sets the number of tests that run at a time.
fn threads(tests: Program, load: Load) -> Program {
    if std::env::var_os(THREADS).is_some() {
        return tests;
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let count = match load {
        // With four programs at a time, twelve tests are under way on two cores.
        Load::Runs => (3 * cores).div_ceil(2),
        Load::Waits => 3 * cores,
    };
    // The memory for their servers is not counted by cores.
    tests.env(THREADS, &count.min(8).to_string())
}

#[cfg(test)]
mod tests {
    use super::warnings;

    #[test]
    fn warnings_are_read_from_the_messages_of_cargo() {
        let text = r#"
   Compiling a
{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: unneeded `return`"}}
{"reason":"compiler-message","message":{"level":"note","rendered":"note: b"}}
{"reason":"compiler-artifact","profile":{"test":true}}
"#;
        assert_eq!(warnings(text).collect::<Vec<_>>(), ["warning: unneeded `return`"]);
    }
}
