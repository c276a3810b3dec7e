//! Real processes: the test binary starts itself again in a role.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencepost_core::{Client, Registry};
use fencepost_testkit::server::{TempDir, send};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// Nothing here takes that long, on whatever machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

const ROLE: &str = "FENCEPOST_TEST_ROLE";
const URL: &str = "FENCEPOST_TEST_URL";

/// A database in a folder of its own, removed at the end.
pub(crate) struct Database(TempDir);

impl Database {
    pub(crate) fn new() -> Database {
        Database(TempDir::new("sqlite").unwrap())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("locks.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub(crate) async fn locks(&self) -> Client {
        connect(&self.url()).await
    }

    /// The side files and bells that are there.
    pub(crate) fn sides(&self) -> Vec<String> {
        let folder = self.folder().join("locks.db-fencepost");
        let names =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "files").collect()
    }

    /// Rows that are not history.
    pub(crate) fn claims(&self) -> i64 {
        let db = rusqlite::Connection::open(self.path()).unwrap();
        db.query_row("SELECT count(*) FROM line WHERE seq > 0 OR token > 0", [], |row| row.get(0)).unwrap()
    }

    /// Runs one statement on it, in another process: a close in this one drops SQLite's locks.
    pub(crate) fn maintain(&self, sql: &str) {
        let mut process = self.start(&format!("maintain {sql}"));
        process.hears("done");
        process.ends();
    }

    /// Starts this test binary again, as `role`.
    pub(crate) fn start(&self, role: &str) -> Process {
        self.start_at(role, &self.url())
    }

    pub(crate) fn start_at(&self, role: &str, url: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["role", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Process { stdin: child.stdin.take(), child, lines }
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    Client::builder().connect(&Registry::new().with("sqlite", fencepost_sqlite::open), url).await.unwrap()
}

/// Waits until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, is: impl FnMut() -> F) {
    fencepost_testkit::wait::eventually(SOON, what, is).await;
}

/// The role this process was started in, and the URL that goes with it.
pub(crate) fn role() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(URL).ok()?))
}

/// A process in a role. It is killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Waits for a line that begins with `word` and returns the rest.
    pub(crate) fn hears(&self, word: &str) -> String {
        let mut heard = Vec::new();
        loop {
            let line = self.lines.recv_timeout(SOON);
            let line = line.unwrap_or_else(|e| panic!("it never said {word:?} but {heard:#?}: {e}"));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            heard.push(line);
        }
    }

    pub(crate) fn has_said(&self, word: &str) -> bool {
        self.lines.try_iter().any(|line| line.starts_with(word))
    }

    /// Lets it go on: it waits for a line.
    pub(crate) fn goes_on(&mut self) {
        writeln!(self.stdin.as_mut().unwrap()).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid().as_raw(), signal);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ends(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line of a role to standard error, which the harness does not capture.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// Waits until the test says go on.
pub(crate) fn told() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}
