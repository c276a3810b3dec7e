//! A process with another library.

use fencepost_core::sync::Mutex;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use fencepost_testkit::zookeeper::class_path;

/// How long a neighbour may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(40);

const JARS: [&str; 7] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "slf4j-simple",
    "guava",
];

/// Curator's program, compiled once.
static CURATOR: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("curator");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/Neighbour.java");
    let compiled = Command::new("javac")
        .args(["-proc:none", "-cp", &class_path(&JARS), "-d"])
        .arg(&folder)
        .arg(source)
        .output()
        .expect("javac can be started");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    folder
});

/// A Python that has kazoo, installed once from the package index and kept in the target folder.
static KAZOO: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kazoo-2.11.0");
    let python = place.join("bin/python");
    let has = |python: &PathBuf| {
        Command::new(python).args(["-c", "import kazoo"]).output().is_ok_and(|output| output.status.success())
    };
    if !has(&python) {
        let run = |command: &mut Command| {
            let output = command.output().expect("Python can be started");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&place));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "kazoo==2.11.0"]));
    }
    python
});

/// A process that asks for a lock, says when it holds it, and lets go of it when it is told. Killed when it is dropped.
pub(crate) struct Neighbour {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Neighbour {
    /// Curator's `mutex`, `read`, `write`, or `semaphoreN`.
    pub(crate) fn curator(hosts: &str, path: &str, kind: &str, session: Duration) -> Neighbour {
        let classes = format!("{}:{}", class_path(&JARS), CURATOR.display());
        let mut command = Command::new("java");
        command.args(["-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &classes, "Neighbour"]);
        Neighbour::start(command.args([hosts, path, kind, &session.as_millis().to_string()]))
    }

    /// kazoo's `mutex`, `read`, `write`, `semaphoreN`, or a mutex `beside` Curator's.
    pub(crate) fn kazoo(hosts: &str, path: &str, kind: &str, session: Duration) -> Neighbour {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/neighbour.py");
        // One at a time looks whether it is there.
        static ONCE: Mutex<()> = Mutex::new(());
        let python = {
            let _alone = ONCE.lock();
            KAZOO.clone()
        };
        Neighbour::start(Command::new(python).args([
            program,
            hosts,
            path,
            kind,
            &session.as_millis().to_string(),
        ]))
    }

    fn start(command: &mut Command) -> Neighbour {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the neighbour can be started");
        let (tell, lines) = channel();
        let output = child.stdout.take().expect("it was piped");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Neighbour { child, input, lines }
    }

    /// Waits until it holds the lock.
    pub(crate) fn held(&self) {
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("held"));
    }

    /// Has it said anything new?
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.lines.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout))
    }

    /// Makes it release the lock, and waits for that.
    pub(crate) fn release(mut self) {
        let mut input = self.input.take().expect("it is released once");
        input.write_all(b"\n").expect("it listens");
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("released"));
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.end();
    }
}
