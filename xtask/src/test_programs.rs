//! The test programs of the workspace. Cargo builds them and would run one after another; most of their tests wait for a lease to end or
//! for a server to start, so here several run at a time.

use crate::process::Program;
use crate::workspace::Workspace;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Programs that take longer are named while the tests run.
const SLOW: Duration = Duration::from_secs(20);

/// The time that a program may take. The slowest one takes 290 s on two quiet cores, beside three others.
const LONGEST: Duration = Duration::from_secs(600);

/// How many tests the list of the slowest ones names.
const SLOWEST: usize = 50;

/// What the tests of a program do for most of their time.
pub(crate) enum Load {
    /// They wait, so that more of them can be under way.
    Waits,
    /// They use a processor.
    Runs,
}

/// A program with tests.
#[derive(Debug, PartialEq)]
pub(crate) struct TestProgram {
    path: PathBuf,
    /// The folder of its package, in which its tests run.
    folder: PathBuf,
}

impl TestProgram {
    /// Returns all test programs of a build, by the messages of `cargo test --no-run --message-format=json`.
    pub(crate) fn all(text: &str) -> Result<Vec<TestProgram>, String> {
        let mut programs = TestProgram::read(text);
        if programs.is_empty() {
            return Err("cargo has built no test program".to_owned());
        }
        programs.sort_by_key(TestProgram::rank);
        Ok(programs)
    }

    /// Reads the messages of `cargo test --message-format=json`.
    fn read(text: &str) -> Vec<TestProgram> {
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let tests = messages.filter(|message| message["profile"]["test"] == true);
        let program = |message: Value| {
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
            Some(TestProgram { path: message["executable"].as_str()?.into(), folder })
        };
        tests.filter_map(program).collect()
    }

    /// The name of its package and its own, for people.
    fn name(&self) -> String {
        let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let own = last(&self.path);
        let own = own.rsplit_once('-').map_or(own.as_str(), |(name, _)| name);
        format!("{} {own}", last(&self.folder))
    }

    /// Programs that run for minutes come first, so that none of them is left alone at the end. The longest of them waits most of its time.
    fn rank(&self) -> usize {
        let name = self.name();
        let long =
            [" cli", "conformance", "engine", "faults", "interop", "table", "primitives", "simulation"];
        long.iter().position(|word| name.contains(word)).unwrap_or(long.len())
    }

    /// The suite waits for leases to end. On memory it uses a processor for a tenth of its time, and on Redis for a third; on PostgreSQL
    /// it uses one for most of its time.
    fn load(&self) -> Load {
        let waits = ["testkit conformance", "redis conformance"];
        if waits.iter().any(|suite| self.name().ends_with(suite)) { Load::Waits } else { Load::Runs }
    }

    /// The program as cargo would run it. It prints the time of each test, which is an unstable option of the harness.
    fn program(&self, workspace: &Workspace, libraries: &str) -> Program {
        let (step, path) = (format!("tests of {}", self.name()), self.path.to_string_lossy());
        workspace
            .program_in(&self.folder, &step, &path, &["-Zunstable-options", "--report-time"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_MANIFEST_DIR", &self.folder.to_string_lossy())
            .env("LD_LIBRARY_PATH", libraries)
            .limit(LONGEST)
    }
}

/// Runs the programs, `lanes` at a time. Returns the output of all, or what failed. The log names the slowest tests.
pub(crate) fn run(
    workspace: &Workspace,
    programs: Vec<TestProgram>,
    lanes: usize,
    prepare: impl Fn(Program, Load) -> Program + Sync,
) -> Result<String, String> {
    let libraries =
        workspace.program("libraries of Rust", "rustc", &["--print", "target-libdir"]).run()?.text;
    let (queue, outcomes) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let began = Instant::now();
                    let outcome = prepare(program.program(workspace, libraries.trim()), program.load()).run();
                    let took = began.elapsed();
                    if took >= SLOW {
                        let busy = outcome.as_ref().map_or(0.0, |output| output.processor.as_secs_f64());
                        let (name, took) = (program.name(), took.as_secs_f64());
                        println!("    {name} took {took:.0} s, {busy:.0} s of a processor");
                    }
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push((program.name(), outcome));
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| "a test program could not be waited for".to_owned())?;
    let (mut text, mut failures, mut times) = (String::new(), Vec::new(), Vec::new());
    for (name, outcome) in outcomes {
        match outcome {
            // A program that calls `exit` in a test ends with 0, and without a result.
            Ok(output) if !output.text.contains("\ntest result: ok. ") => {
                failures.push(format!("{name}: ended without a result"));
            }
            Ok(output) => {
                times
                    .extend(seconds(&output.text).map(|(time, test)| format!("{time:8.3} s  {name} {test}")));
                text.push_str(&output.text);
            }
            Err(failure) => failures.push(format!("{name}: {failure}")),
        }
    }
    // The times are of one width.
    times.sort_by(|one, other| other.cmp(one));
    times.truncate(SLOWEST);
    let list = workspace.log("slowest tests");
    std::fs::write(&list, times.join("\n") + "\n").map_err(|error| format!("{}: {error}", list.display()))?;
    if failures.is_empty() { Ok(text) } else { Err(failures.join("\n")) }
}

/// The tests in the output of a program, with their times.
fn seconds(output: &str) -> impl Iterator<Item = (f64, &str)> {
    output.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((rest.split_once('<')?.1.split_once("s>")?.0.parse().ok()?, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_the_messages_of_cargo() {
        let text = r#"
   Compiling a
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":"/t/a-1f"}
{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"executable":"/t/tool"}
{"reason":"compiler-artifact","manifest_path":"/w/b/Cargo.toml","profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}
"#;
        let found = TestProgram::read(text);
        assert_eq!(found, [TestProgram { path: "/t/a-1f".into(), folder: "/w/a".into() }]);
        assert_eq!(found[0].name(), "a a");
    }

    #[test]
    fn times_are_read_from_the_harness() {
        let text = "running 3 tests\ntest a::b ... ok <1.250s>\ntest c ... ok\ntest d ... FAILED <0.001s>\n";
        assert_eq!(seconds(text).collect::<Vec<_>>(), [(1.25, "a::b"), (0.001, "d")]);
    }
}
