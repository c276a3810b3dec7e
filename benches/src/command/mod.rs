//! Long checks of the command, from outside: real processes that are killed, counted and watched.

pub(crate) mod cost;
pub(crate) mod crowd;
pub(crate) mod demo;
pub(crate) mod frozen;
pub(crate) mod idle;
pub(crate) mod kill;
pub(crate) mod once;
pub(crate) mod paused;
pub(crate) mod retry;
pub(crate) mod stopped;

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use fencepost_testkit::server::TempDir;

/// A folder with a database of its own, removed at the end.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    /// A new folder below the system's folder for temporary files.
    pub(crate) fn new(name: &str) -> Place {
        Place { folder: TempDir::new(&format!("bench-{name}")).expect("a folder for the database") }
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.file("locks.db").display())
    }

    /// `fencepost arguments…` on its database.
    pub(crate) fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = fencepost();
        command
            .args(arguments)
            .env("FENCEPOST_BACKEND", self.url())
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// The program `fencepost` beside this one.
pub(crate) fn fencepost() -> Command {
    neighbour("fencepost")
}

/// The program of this name beside this one.
pub(crate) fn neighbour(name: &str) -> Command {
    let me = std::env::current_exe().expect("the path of this program");
    Command::new(me.parent().unwrap_or(Path::new("/")).join(name))
}

/// A started wrapper with its child's output; it is killed when it is dropped.
pub(crate) struct Wrapper {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Wrapper {
    /// Starts the command.
    pub(crate) fn start(mut command: Command) -> Wrapper {
        let mut process =
            command.stdout(Stdio::piped()).spawn().expect("the fencepost command beside this program");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        Wrapper { process, output }
    }

    /// Writes a line to its input.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("its input");
        // One that has ended already shows it in its output.
        let _ = writeln!(input, "{line}");
    }

    /// Sends it the word to begin.
    pub(crate) fn go(&mut self) {
        // One that has ended already shows it in its output.
        drop(self.process.stdin.take());
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.process.id()).expect("a process id"))
    }

    /// The next line that its child writes; empty once all who could write are gone.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        // Output that cannot be read counts as nothing written.
        let _ = self.output.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Kills the wrapper as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits for its end; its exit code, 128 and more for a signal's.
    pub(crate) fn wait(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = self.process.wait().expect("its end");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until `there` claims wait in the line of a name, as `fencepost queue` shows it.
pub(crate) fn wait_for_line(place: &Place, name: &str, there: usize) {
    for _ in 0..6_000 {
        if waiting(place, name) >= there {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{there} claims should wait for {name}, but {} do", waiting(place, name));
}

fn waiting(place: &Place, name: &str) -> usize {
    listed(place, &["queue", "--json", name])
}

/// How many names are held or waited for.
pub(crate) fn in_use(place: &Place) -> usize {
    listed(place, &["ls", "--json"])
}

/// The length of the array that a verb prints.
fn listed(place: &Place, arguments: &[&str]) -> usize {
    let output = place.fencepost(arguments).output().expect("the fencepost command beside this program");
    let json: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    json.and_then(|json| json.as_array().map(Vec::len))
        .unwrap_or_else(|| panic!("{arguments:?} prints no array"))
}
