//! The test programs of the workspace. Cargo builds them and would run one after another; most of their tests wait for a lease to end or
//! for a server to start, so here several run at a time.

use crate::process::Program;
use crate::slowest::{self, Test};
use crate::workspace::Workspace;
use serde::Deserialize;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Programs that take longer are named while the tests run.
const SLOW: Duration = Duration::from_secs(20);

/// A line of `cargo test --message-format=json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A program with tests.
#[derive(Debug, PartialEq)]
pub(crate) struct TestProgram {
    path: PathBuf,
    /// The folder of its package, in which its tests run.
    folder: PathBuf,
}

impl TestProgram {
    /// Builds all test programs with these arguments of `cargo test`, and returns them.
    pub(crate) fn all(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<TestProgram>, String> {
        let arguments = [arguments, &["--no-run", "--message-format=json"]].concat();
        let output = workspace.cargo("test programs", &arguments).run()?;
        let mut programs = TestProgram::read(&output.text);
        if programs.is_empty() {
            return Err("cargo has built no test program".to_owned());
        }
        programs.sort_by_key(TestProgram::rank);
        Ok(programs)
    }

    fn read(text: &str) -> Vec<TestProgram> {
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        let programs =
            messages.filter(|message| message.profile.as_ref().is_some_and(|profile| profile.test));
        programs
            .filter_map(|message| {
                let folder = message.manifest_path?.parent()?.to_path_buf();
                Some(TestProgram { path: message.executable?, folder })
            })
            .collect()
    }

    /// The name of its package and its own, for people.
    pub(crate) fn name(&self) -> String {
        let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let own = last(&self.path);
        let own = own.rsplit_once('-').map_or(own.as_str(), |(name, _)| name);
        format!("{} {own}", last(&self.folder))
    }

    /// Programs that run for minutes come first, so that none of them is left alone at the end.
    fn rank(&self) -> usize {
        let name = self.name();
        let long = ["conformance", " cli", "engine", "table", "interop"];
        long.iter().position(|word| name.contains(word)).unwrap_or(long.len())
    }

    /// The program as cargo would run it.
    pub(crate) fn program(&self, workspace: &Workspace, libraries: &str) -> Program {
        let step = format!("tests of {}", self.name());
        workspace
            .program_in(&self.folder, &step, &self.path.to_string_lossy(), &slowest::ARGUMENTS)
            .env(slowest::VARIABLE.0, slowest::VARIABLE.1)
            .env("CARGO_MANIFEST_DIR", &self.folder.to_string_lossy())
            .env("LD_LIBRARY_PATH", libraries)
    }
}

/// Runs the programs, `lanes` at a time. Returns the output of all, or what failed. Writes the slowest tests to a file.
pub(crate) fn run(
    programs: Vec<TestProgram>,
    lanes: usize,
    slowest: &Path,
    prepare: impl Fn(&TestProgram) -> Program + Sync,
) -> Result<String, String> {
    let (queue, outcomes) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let began = Instant::now();
                    let outcome = prepare(&program).run();
                    let took = began.elapsed();
                    if took >= SLOW {
                        println!("    {} took {:.0} s", program.name(), took.as_secs_f64());
                    }
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push((program.name(), outcome));
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| "a test program could not be waited for".to_owned())?;
    let (mut text, mut failures, mut times) = (String::new(), Vec::new(), Vec::<Test>::new());
    for (name, outcome) in outcomes {
        match outcome {
            Ok(output) => {
                times.extend(slowest::read(&name, &output.text));
                text.push_str(&output.text);
            }
            Err(failure) => failures.push(format!("{name}: {failure}")),
        }
    }
    slowest::write(times, slowest)?;
    if failures.is_empty() { Ok(text) } else { Err(failures.join("\n")) }
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
    fn long_programs_come_first() {
        let program = |path: &str| TestProgram { path: path.into(), folder: "/w/a".into() };
        let mut programs = [program("/t/words-1"), program("/t/engine-1"), program("/t/conformance_row-1")];
        programs.sort_by_key(TestProgram::rank);
        let names: Vec<_> = programs.iter().map(TestProgram::name).collect();
        assert_eq!(names, ["a conformance_row", "a engine", "a words"]);
    }
}
