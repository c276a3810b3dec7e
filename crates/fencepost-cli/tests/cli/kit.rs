//! Shared parts of the tests: a state folder of their own, processes that never outlive a test, pipes that tell
//! when everything that has them open is dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fencepost_testkit::server::{TempDir, send};
use nix::poll::PollTimeout;
use nix::sys::signal::Signal;
use serde_json::Value;

pub(crate) use crate::pipe::{Pipe, Reader};

/// Nothing here takes so long; a test that waits longer has failed.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The shortest and the longest pause between two questions.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Asks again and again until there is an answer, for so long at most. A question that starts a process takes as much of a processor
/// as the process does, so the pause is three times as long as the question.
pub(crate) fn eventually<T>(what: &str, bound: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + bound;
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {bound:?}: {what}");
        std::thread::sleep((3 * asked.elapsed()).clamp(PAUSE.0, PAUSE.1));
    }
}

/// Repeats a case until it takes less than this, and gives up after three tries: a machine that is busy with other things may be late now
/// and then.
#[track_caller]
pub(crate) fn takes_less_than<T>(limit: Duration, mut case: impl FnMut() -> T) -> T {
    let mut tries = Vec::new();
    while tries.len() < 3 {
        let start = Instant::now();
        let answer = case();
        let took = start.elapsed();
        if took < limit {
            return answer;
        }
        tries.push(took);
    }
    panic!("it took {tries:?}, and not less than {limit:?}");
}

/// A folder of a test's own, with its own locks.
pub(crate) struct Place {
    folder: TempDir,
    /// Where its locks are, if not in its state folder.
    backend: Option<String>,
    /// Whether programs that hold a lock release it within 30 s, and not within 2 s.
    is_patient: bool,
    /// Whether commands have the users' limit for an attempt, of 1 s, which a busy machine exceeds now and then.
    is_impatient: bool,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new("cli").unwrap(), backend: None, is_patient: false, is_impatient: false }
    }

    /// The same with the locks of another engine.
    pub(crate) fn at(url: &str) -> Self {
        let mut place = Self::new();
        place.backend = Some(url.to_owned());
        place
    }

    /// The same for a test whose server is there all the time: a request and a release have more time than a busy machine needs.
    pub(crate) fn patient(url: &str) -> Self {
        let limits =
            if url.starts_with("zookeeper") { "timeout=20s" } else { "connect_timeout=20s&timeout=20s" };
        let separator = if url.contains('?') { '&' } else { '?' };
        Self { is_patient: true, ..Self::at(&format!("{url}{separator}{limits}")) }
    }

    /// The same for a test whose subject is how long an attempt takes.
    pub(crate) fn impatient(mut self) -> Self {
        self.is_impatient = true;
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file in which the default engine keeps its locks.
    pub(crate) fn database(&self) -> PathBuf {
        self.path("state/fencepost/locks.db")
    }

    /// The command, with this place as its state folder and current folder.
    pub(crate) fn fencepost<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        self.via(env!("CARGO_BIN_EXE_fencepost"), arguments)
    }

    /// Another program that runs the command, or anything else, in this place. Signals are as a shell on a terminal leaves them,
    /// whatever those who run the tests ignore: what is started with `&` or `nohup` ignores some.
    pub(crate) fn via<S: AsRef<std::ffi::OsStr>>(
        &self,
        program: impl AsRef<std::ffi::OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("env");
        command
            .arg("--default-signal")
            .arg(program)
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("FENCEPOST_TEST_ETC", self.path("etc.toml"))
            // Chosen: an engine that nobody chose is said to reach this machine only.
            .env("FENCEPOST_BACKEND", "local")
            .env("FENCEPOST_TEST_ATTEMPT", "20s")
            .env_remove("FENCEPOST_ACROSS_HOSTS")
            .env_remove("FENCEPOST_LABEL")
            .env_remove("FENCEPOST_TTL")
            .env_remove("FENCEPOST_LEASE")
            .env_remove("FENCEPOST_DEGRADE")
            .env_remove("FENCEPOST_DEGRADED")
            .env_remove("FENCEPOST_SERVICE_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(url) = &self.backend {
            command.env("FENCEPOST_BACKEND", url);
        }
        if self.is_impatient {
            command.env_remove("FENCEPOST_TEST_ATTEMPT");
        }
        command
    }

    /// Runs the command to its end.
    pub(crate) fn output<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        Kid::of(&mut self.fencepost(arguments)).said()
    }

    /// Starts `fencepost run` with these options and a script, and waits for the script's first line. The script finds its end
    /// of a pipe under descriptor 9 in `$PIPE`'s place: all that it starts has it open too.
    pub(crate) fn running(&self, options: &[&str], name: &str, script: &str) -> Running {
        let mut running = self.starting(options, name, script);
        if running.begins() {
            return running;
        }
        panic!("it ended before its program's first line: {:?}", running.kid.said())
    }

    /// The same with a short lease or time, which a busy machine may let pass before the first line. Then the command is started again.
    pub(crate) fn running_briefly(&self, options: &[&str], name: &str, script: &str) -> Running {
        eventually("a program that comes to its first line", LONG, || {
            let mut running = self.starting(options, name, script);
            running.begins().then_some(running)
        })
    }

    fn starting(&self, options: &[&str], name: &str, script: &str) -> Running {
        let pipe = Pipe::new(self);
        let script = format!("exec 9>'{}'; {script}", pipe.path.display());
        let rest = [name, "--", "sh", "-c", &script];
        // A server that is busy for longer than the usual 2 s would leave the lock to the end of its lease.
        let release: &[&str] = if self.is_patient { &["--release-wait", "30s"] } else { &[] };
        let arguments = ["run"].iter().chain(options).chain(release).chain(&rest);
        Running { kid: Kid::of(&mut self.fencepost(arguments)), pipe }
    }

    /// Returns the output of `show` for a lock, as JSON.
    pub(crate) fn show(&self, name: &str) -> Value {
        let said = self.output(["show", "--json", name]);
        serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"))
    }

    /// Waits until so many wait for a lock. One that could not leave the queue in time, because the server was busy, stays for a lease.
    pub(crate) fn waiters(&self, name: &str, count: usize) -> Value {
        eventually(&format!("{count} waiters of {name}"), 3 * LONG, || {
            let shown = self.show(name);
            (shown["waiters"].as_array()?.len() == count).then_some(shown)
        })
    }

    /// Returns what ended clients have left: their files beside the database, and rows that are not history.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let folder = self.path("state/fencepost/locks.db-fencepost");
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut left: Vec<String> = files
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name != "files")
            .collect();
        let database = rusqlite::Connection::open(self.database()).unwrap();
        let mut claims = database.prepare("SELECT resource FROM line WHERE seq > 0 OR token > 0").unwrap();
        let claims = claims.query_map([], |row| row.get::<_, String>(0)).unwrap();
        left.extend(claims.map(|name| format!("a claim of {}", name.unwrap())));
        left
    }

    /// A file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// The output and exit code of a finished process.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn complains(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:?}");
        }
        self
    }
}

/// A process that dies with the test.
pub(crate) struct Kid {
    child: Option<Child>,
}

impl Kid {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self { child: Some(command.spawn().unwrap()) }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id().try_into().unwrap()
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually("the process ends", LONG, || self.child().try_wait().unwrap())
    }

    /// Waits for its end and reads what it has said. Each other process that has its output open must end too.
    pub(crate) fn said(self) -> Said {
        self.said_within(LONG)
    }

    /// The same for a process that may take longer.
    pub(crate) fn said_within(mut self, bound: Duration) -> Said {
        let child = self.child();
        let mut out = child.stdout.take().map(|pipe| Reader::new(pipe.into()));
        let mut err = child.stderr.take().map(|pipe| Reader::new(pipe.into()));
        let status = eventually("the process ends", bound, || {
            // A full pipe would stop it.
            for reader in [&mut out, &mut err].into_iter().flatten() {
                reader.fill(PollTimeout::ZERO);
            }
            self.child().try_wait().unwrap()
        });
        let all = |reader: Option<Reader>| reader.map(Reader::all).unwrap_or_default();
        Said { code: status.code(), out: all(out), err: all(err) }
    }

    /// Its standard output, to be read while it runs.
    pub(crate) fn out(&mut self) -> Reader {
        Reader::new(self.child().stdout.take().unwrap().into())
    }

    /// Its standard error.
    pub(crate) fn err(&mut self) -> Reader {
        Reader::new(self.child().stderr.take().unwrap().into())
    }

    /// The guardian, once there is one.
    pub(crate) fn guardian(&self) -> i32 {
        eventually("a guardian", LONG, || child_of(self.pid()))
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The first child of a process.
pub(crate) fn child_of(pid: i32) -> Option<i32> {
    children_of(pid).first().copied()
}

/// The children of a process.
pub(crate) fn children_of(pid: i32) -> Vec<i32> {
    stats().into_iter().filter(|(_, parent, _)| *parent == pid).map(|(pid, _, _)| pid).collect()
}

/// Process, parent and state of all processes.
pub(crate) fn stats() -> Vec<(i32, i32, String)> {
    let mut all = Vec::new();
    // Not "self" and its like: those show this thread once more, under its own number.
    let numbered = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    for entry in fs::read_dir("/proc").unwrap().flatten().filter(numbered) {
        all.extend(stat(&entry.path()));
    }
    all
}

/// Process, parent and state of the process with this folder in /proc.
fn stat(folder: &Path) -> Option<(i32, i32, String)> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let (pid, rest) = stat.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut rest = rest.split(' ');
    let state = rest.next()?.to_owned();
    Some((pid.parse().ok()?, rest.next()?.parse().ok()?, state))
}

/// Whether a process is there and no zombie.
pub(crate) fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != "Z")
}

/// The state letter of a process.
pub(crate) fn state(pid: i32) -> Option<String> {
    stat(&Path::new("/proc").join(pid.to_string())).map(|(_, _, state)| state)
}

/// A running `fencepost run`, and the pipe of its script.
pub(crate) struct Running {
    pub(crate) kid: Kid,
    pub(crate) pipe: Pipe,
}

impl Running {
    /// Waits for the script's first line. `false`: the command has ended before that.
    fn begins(&mut self) -> bool {
        eventually("a line, or the end of the command", LONG, || {
            let has_ended = self.kid.child().try_wait().unwrap().is_some();
            let has_begun = self.pipe.next_line().is_some();
            (has_begun || has_ended).then_some(has_begun)
        })
    }
}

/// A script that says that it runs, and goes on for long.
pub(crate) const HOLD: &str = "echo up >&9; exec sleep 1000";

/// The next event that `watch --json` prints, and of which lock.
pub(crate) fn event(printed: &mut Reader) -> (String, String) {
    let event: Value = serde_json::from_str(&printed.line()).unwrap();
    (event["event"].as_str().unwrap().to_owned(), event["name"].as_str().unwrap().to_owned())
}

/// A script's part: leaves a process behind that has gone into a session of its own by a double fork, says its id on descriptor
/// 9, and ignores what asks it to end.
pub(crate) const DAEMON: &str = "setsid sh -c '(trap \"\" TERM HUP INT; echo $$ >/dev/null; exec sleep 1000) & echo $! >&9; \
     until grep -q sleep /proc/$!/comm; do :; done' & wait; ";
