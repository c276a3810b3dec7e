//! `cargo xtask test`: everything that must hold before a change is merged.

use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::process::Program;
use crate::runner::{Done, Runner, passed};
use crate::test_programs::{self, TestProgram};
use crate::workspace::Workspace;
use crate::{deny, dist, drivers, english, features, layout, packages, rare, readme, suite, tree};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// How many tests of a program the harness runs at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// The options of a run.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// Missing Debian packages are installed.
    pub(crate) install: bool,
    /// Checks run although their inputs have not changed.
    pub(crate) all: bool,
    /// The names of the steps are printed, and nothing runs.
    pub(crate) list: bool,
}

/// The steps of `cargo xtask test quick`.
fn quick(workspace: &Workspace) -> bool {
    let mut run = Runner::new(&[], false);
    run.step("format", || format(workspace));
    run.step("lint", || lint(workspace, &[]));
    run.step("tests of core", || tests_of(workspace, &["--package", "fencepost-core", "--lib", "--tests"]));
    run.step("suite on memory", || {
        tests_of(workspace, &["--package", "fencepost-testkit", "--test", "conformance"])
    });
    run.step("suite on SQLite", || {
        tests_of(workspace, &["--package", "fencepost-sqlite", "--test", "conformance"])
    });
    run.finish()
}

fn tests_of(workspace: &Workspace, which: &[&str]) -> Result<Done, String> {
    let arguments = [&["test"], which].concat();
    counted(&threads(workspace.cargo("quick", &arguments).each_test(EACH_TEST)).run()?.text)
}

fn format(workspace: &Workspace) -> Result<Done, String> {
    workspace.cargo("format", &["fmt", "--all", "--", "--check"]).run()?;
    passed()
}

fn lint(workspace: &Workspace, features: &[&str]) -> Result<Done, String> {
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets"];
    workspace.cargo("lint", &[&clippy, features, &["--", "-D", "warnings"]].concat()).run()?;
    passed()
}

/// Runs the steps; false if one failed.
pub(crate) fn test(only: &[String], extent: Extent) -> Result<bool, String> {
    let workspace = &Workspace::find();
    if only == ["quick"] {
        return Ok(quick(workspace));
    }
    let metadata = &Metadata::of(workspace)?;
    let mut run = Runner::new(only, extent.list);

    run.step("packages of the system", || packages::packages(workspace, extent.install));
    run.step("files of the tree", || tree::checks(workspace));
    run.step("plain English", || english::english(workspace));
    run.step("layout", || layout::layout(workspace));
    run.step("engines under the suite", || suite::pairings(workspace));
    run.step("format", || format(workspace));
    if extent.all {
        run.step("licences and sources", || deny::deny(workspace, extent.install));
    }
    // Code that only a missing feature compiles is checked by "each feature alone", which fails on warnings.
    run.step("lint", || lint(workspace, &["--all-features"]));
    run.step("documentation", || {
        let arguments =
            ["doc", "--quiet", "--workspace", "--all-features", "--no-deps", "--document-private-items"];
        workspace.cargo("documentation", &arguments).env("RUSTDOCFLAGS", "-D warnings").run()?;
        passed()
    });
    run.step("each feature alone", || {
        let is_source = |path: &Path| {
            path.starts_with("crates/fencepost/tests")
                || path.starts_with("crates") && path.components().any(|folder| folder.as_os_str() == "src")
        };
        let input = |path: &Path| rare::is_build_input(path) || is_source(path);
        rare::check(workspace, extent.all, "each feature alone", input, || {
            features::alone(workspace, metadata)
        })
    });
    run.step("macOS", || {
        let sources = ["core", "etcd", "quorum", "redis", "tls"];
        let sources = sources.map(|name| Path::new("crates").join(format!("fencepost-{name}")).join("src"));
        let input =
            |path: &Path| rare::is_build_input(path) || sources.iter().any(|folder| path.starts_with(folder));
        rare::check(workspace, extent.all, "macOS", input, || features::macos(workspace))
    });
    run.step("oldest Rust", || {
        rare::check(workspace, extent.all, "oldest Rust", rare::is_build_input, || {
            oldest_rust(workspace, metadata)
        })
    });
    // Before the tests are built, because the clone's program takes the place of the one that they start.
    run.step("README's commands", || readme::check(workspace, extent.all));
    run.step("tests are built", || {
        workspace.cargo("tests are built", &[&ALL_TESTS[..], &["--no-run"]].concat()).run()?;
        passed()
    });
    run.step("tests", || tests(workspace));
    run.step("documentation examples", || {
        let output = workspace
            .cargo("documentation examples", &[&["test", "--workspace", "--doc"], &METRICS[..]].concat())
            .each_test(EACH_TEST)
            .run()?;
        counted(&output.text)
    });
    run.step("planted bugs are caught", || planted(workspace, metadata));
    let of_sqlite = |path: &Path| rare::is_build_input(path) || path.starts_with("crates/fencepost-sqlite");
    run.step("both ends of the driver's range", || {
        rare::check(workspace, extent.all, "both ends of the driver's range", of_sqlite, || {
            drivers::both_ends(workspace, metadata)
        })
    });
    run.step("beside other users of SQLite", || {
        rare::check(workspace, extent.all, "beside other users of SQLite", rare::is_build_input, || {
            drivers::beside(workspace, metadata)
        })
    });
    if extent.all {
        run.step("whole suite on each deployment", || {
            tests_of(workspace, &["--workspace", "--test", "conformance", "--", "--ignored", "whole::"])
        });
        run.step("static binary", || dist::check(workspace));
    }
    Ok(run.finish())
}

/// How many test programs run at a time. All of them together use 800 s of processor time, and most wait for a lease to end or a server to
/// start: two at a time left the cores idle for half of the run.
const LANES: usize = 3;

/// The time that a test may run.
const EACH_TEST: Duration = Duration::from_secs(120);

/// The tests of this feature need it, and the others do not mind it.
const METRICS: [&str; 2] = ["--features", "fencepost-core/metrics"];

/// Runs all tests but those in documentation. Tests that need a missing program are skipped, and counted.
fn tests(workspace: &Workspace) -> Result<Done, String> {
    if packages::missing().is_empty() {
        return counted(&all_tests(workspace, ("FENCEPOST_PROGRAMS", "required"))?);
    }
    let list = workspace.scratch("skipped-tests");
    std::fs::write(&list, "").map_err(|error| format!("{}: {error}", list.display()))?;
    let outcome = counted(&all_tests(workspace, ("FENCEPOST_SKIPPED", &list.to_string_lossy()))?)?;
    let skipped = std::fs::read_to_string(&list).map_or(0, |list| list.lines().count());
    Ok(match outcome {
        // The harness counts a skipped test as passed.
        Done::Passed(count) => Done::Passed(format!("{count}, of which {skipped} were skipped")),
        other @ Done::Skipped(_) => other,
    })
}

/// The arguments of cargo for all tests but those in documentation.
const ALL_TESTS: [&str; 5] = ["test", "--workspace", "--all-targets", METRICS[0], METRICS[1]];

/// Runs all tests but those in documentation, with a variable in their environment, and returns what they print.
fn all_tests(workspace: &Workspace, variable: (&str, &str)) -> Result<String, String> {
    let programs = TestProgram::all(workspace, &ALL_TESTS)?;
    let of_rust = workspace.program("libraries of Rust", "rustc", &["--print", "target-libdir"]).run()?;
    let memory = Memory::folder();
    test_programs::run(programs, LANES, &workspace.log("slowest tests"), |program| {
        let tests = threads(program.program(workspace, of_rust.text.trim()).each_test(EACH_TEST));
        let tests = tests.env(variable.0, variable.1);
        match &memory {
            Some(memory) => tests.env("TMPDIR", &memory.path()),
            None => tests,
        }
    })
}

/// Sets the number of tests that run at a time.
fn threads(tests: Program) -> Program {
    if std::env::var_os(THREADS).is_some() {
        return tests;
    }
    // With three programs at a time, nine tests are under way on two cores.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    tests.env(THREADS, &(3 * cores).div_ceil(2).to_string())
}

/// The number of tests that ran, read from the harness's own lines; none at all is a failure.
fn counted(text: &str) -> Result<Done, String> {
    let count = passed_tests(text);
    if count == 0 { Err("no test ran".to_owned()) } else { Ok(Done::Passed(format!("{count} tests"))) }
}

fn passed_tests(text: &str) -> usize {
    text.lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok())
        .sum()
}

/// Checks the workspace with the oldest Rust that it promises, where rustup has that toolchain.
fn oldest_rust(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    let oldest = metadata.own().filter_map(|package| package.rust_version.as_deref()).min();
    let oldest = oldest.ok_or("no package states its rust-version")?;
    let Ok(installed) = workspace.program("toolchains", "rustup", &["toolchain", "list"]).run() else {
        return Ok(Done::Skipped("rustup is not here to ask for toolchains".to_owned()));
    };
    let Some(toolchain) =
        installed.text.lines().filter_map(|line| line.split_whitespace().next()).find(|name| {
            name.strip_prefix(oldest).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
        })
    else {
        return Ok(Done::Skipped(format!("the toolchain {oldest} is not installed")));
    };
    // A folder of its own: cargo takes another compiler's builds for stale ones and would build all of it twice.
    let target = workspace.scratch("oldest-rust");
    let arguments = ["run", toolchain, "cargo", "check", "--quiet", "--workspace", "--all-features"];
    let check = workspace.program("oldest Rust", "rustup", &arguments);
    check.env("CARGO_TARGET_DIR", &target.to_string_lossy()).run()?;
    Ok(Done::Passed(toolchain.to_owned()))
}

/// The checker and the suite against bugs put into the memory engine on purpose.
fn planted(workspace: &Workspace, metadata: &Metadata) -> Result<Done, String> {
    let (package, feature) = ("fencepost-testkit", "planted");
    let has = metadata.package(package).is_some_and(|found| found.features.contains_key(feature));
    if !has {
        return Err(format!("{package} has no feature `{feature}`"));
    }
    let tests = planted_tests(&workspace.root().join("crates").join(package).join("tests"), feature)?;
    let mut arguments = vec!["test", "--profile", "planted", "--package", package, "--features", feature];
    arguments.extend(tests.iter().flat_map(|test| ["--test", test]));
    counted(&workspace.cargo("planted bugs", &arguments).each_test(EACH_TEST).run()?.text)
}

/// Returns the test programs that the feature changes. The others have run without it.
fn planted_tests(folder: &Path, feature: &str) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let needs = format!("feature = \"{feature}\"");
    let mut tests = Vec::new();
    for file in std::fs::read_dir(folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        let is_program = path.extension().is_some_and(|extension| extension == "rs");
        if is_program && std::fs::read_to_string(&path).map_err(failed)?.contains(&needs) {
            tests.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    if tests.is_empty() { Err(format!("{}: no test needs {needs}", folder.display())) } else { Ok(tests) }
}

#[cfg(test)]
mod tests {
    use super::passed_tests;

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let text = "test result: ok. 3 passed; 0 failed;\nother\ntest result: ok. 14 passed; 0 failed;\n";
        assert_eq!(passed_tests(text), 17);
        assert_eq!(passed_tests("test result: FAILED. 3 passed; 1 failed;"), 0);
    }
}
