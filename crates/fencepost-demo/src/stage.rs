//! The parts that all demos share: their options, their folder, and the processes that they start.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost::Locks;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::PART;
use crate::picture::Picture;

/// How a demo runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The short form, for tests: at most 5 s.
    pub short: bool,
    /// One JSON object a line instead of the picture.
    pub json: bool,
    /// The URL of the engine in which fencepost's own locks live. `None`: a SQLite file of the demo.
    pub backend: Option<String>,
}

/// Why a demo could not be run to its end.
#[derive(Debug)]
pub struct Failure {
    /// The caller asked for something that does not exist.
    pub is_usage: bool,
    message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { is_usage: true, message: message.into() }
    }

    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { is_usage: false, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        Failure::new(format!("the demo's own SQLite file: {error}"))
    }
}

impl From<fencepost::Error> for Failure {
    fn from(error: fencepost::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

/// The environment variable that tells a part the URL of the engine. An argument would be shown by `ps`.
const BACKEND: &str = "FENCEPOST_DEMO_BACKEND";

/// A demo that runs.
pub(crate) struct Stage {
    pub(crate) options: Options,
    pub(crate) picture: Picture,
    demo: &'static str,
    folder: TempDir,
}

impl Stage {
    pub(crate) fn new(demo: &'static str, options: Options) -> Result<Stage, Failure> {
        let folder = tempfile::Builder::new().prefix("fencepost-demo-").tempdir()?;
        Ok(Stage { picture: Picture::new(options.json), options, demo, folder })
    }

    /// The demo's temporary folder, which is removed at its end.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a process of the demo with these arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Result<Part, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(PART).arg(self.demo).args(arguments).env(BACKEND, self.backend());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        Ok(Part { child })
    }

    /// Says what each round is, and how the story ended.
    #[cfg(feature = "redis")]
    pub(crate) fn explain(&self, rounds: &[(&str, &str)], as_told: bool, lesson: &str) -> bool {
        self.picture.say("");
        for (round, what) in rounds {
            self.picture.say(&format!("  {round:<18} {what}"));
        }
        self.end(as_told, lesson)
    }

    /// Says how the story ended, and returns whether that is as told.
    pub(crate) fn end(&self, as_told: bool, told: &str) -> bool {
        let text = if as_told { told } else { "This run did not come out as told: see the numbers above." };
        self.picture.say(&format!("\n{text}"));
        as_told
    }

    /// The URL of the engine in which fencepost's own locks live.
    pub(crate) fn backend(&self) -> String {
        let own = || format!("sqlite:{}", self.folder().join("fencepost.db").display());
        self.options.backend.clone().unwrap_or_else(own)
    }
}

/// Returns the URL of the engine in which fencepost's own locks live, in a part.
pub(crate) fn url() -> Result<String, Failure> {
    std::env::var(BACKEND).map_err(|_| Failure::new(format!("{BACKEND} is not set")))
}

/// Connects a part to the engine in which fencepost's own locks live.
pub(crate) async fn connect() -> Result<Locks, Failure> {
    connect_to(&url()?).await
}

/// How long a busy machine may take for a request.
const WAIT: Duration = Duration::from_secs(10);

/// Connects to the engine behind the URL.
pub(crate) async fn connect_to(url: &str) -> Result<Locks, Failure> {
    Ok(Locks::builder(url).connect_wait(WAIT).attempt_timeout(WAIT).connect().await?)
}

/// The runtime of a process.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// A process of a demo. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    child: Child,
}

impl Part {
    /// Waits until the process has stopped itself (`SIGSTOP`).
    pub(crate) fn await_stop(&self, limit: Instant) -> Result<(), Failure> {
        while !self.has_stopped()? {
            if Instant::now() >= limit {
                return Err(Failure::new("a process of the demo was not stopped"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns whether the process has stopped itself (`SIGSTOP`).
    pub(crate) fn has_stopped(&self) -> Result<bool, Failure> {
        // The state follows the program's name, which is in parentheses (proc(5)).
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        match stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]) {
            Some(b'Z') => Err(Failure::new("a process of the demo ended before it was stopped")),
            state => Ok(state == Some(b'T')),
        }
    }

    /// Lets the process go on (`SIGCONT`).
    pub(crate) fn go_on(&self) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).map_err(|error| Failure::new(error.to_string()))?;
        Ok(kill(Pid::from_raw(pid), Signal::SIGCONT).map_err(std::io::Error::from)?)
    }

    /// Waits for its end, calls `look` every 50 ms meanwhile, and returns what it has written.
    pub(crate) fn wait(&mut self, limit: Instant, mut look: impl FnMut()) -> Result<String, Failure> {
        loop {
            look();
            if let Some(status) = self.child.try_wait()? {
                let mut said = String::new();
                if status.success() {
                    if let Some(stdout) = self.child.stdout.as_mut() {
                        stdout.read_to_string(&mut said)?;
                    }
                    return Ok(said);
                }
                if let Some(stderr) = self.child.stderr.as_mut() {
                    stderr.read_to_string(&mut said)?;
                }
                return Err(Failure::new(format!("a process of the demo failed: {}", said.trim())));
            }
            if Instant::now() >= limit {
                return Err(Failure::new("a process of the demo did not end in time"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
