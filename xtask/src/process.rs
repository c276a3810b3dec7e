//! Programs that a step runs: each in a process group of its own, with its output in a file and a bound on its time.

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// The groups that run now, for the thread that passes signals on.
static GROUPS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that goes with xtask if a signal ends it.
pub(crate) static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// How many lines of a failed program's output are shown.
const TAIL: usize = 80;

/// Ends the running programs together with xtask.
///
/// Children are started in groups of their own, so the terminal's Ctrl-C reaches xtask alone. The signals are handled, not
/// blocked: what xtask starts would inherit a blocked signal, and so would every program that a test starts.
pub(crate) fn stop_children_on_signals() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Kept to the end, so that nothing else starts.
            let running = groups();
            running.iter().copied().for_each(kill_group);
            if let Some(folder) = FOLDER.get() {
                let _ = std::fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal);
        }
    });
}

fn kill_group(group: i32) {
    if group > 0 {
        // The group may just have ended by itself: nothing to do then.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

/// One program to run, and how long it may take.
pub(crate) struct Program {
    command: Command,
    shown: String,
    limit: Duration,
    log: PathBuf,
    /// The exit codes that are no failure.
    good: &'static [i32],
}

/// The output of a program, of both streams together.
pub(crate) struct Output {
    /// Everything it wrote.
    pub(crate) text: String,
    /// The time that a processor ran it, and the children that it waited for.
    pub(crate) processor: Duration,
}

/// Returns the processor time of a program that has ended and is not reaped.
fn processor_time(program: Pid) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
    // Fields 14 to 17 of proc_pid_stat(5), counted from the end of the name: its own time and its children's, as user and as kernel.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    Duration::from_millis(ticks * 1000 / per_second.unwrap_or(100))
}

impl Program {
    /// `program arguments…` in `folder`, with its output in `log`.
    pub(crate) fn new(program: &str, arguments: &[&str], folder: &Path, log: PathBuf) -> Program {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder);
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        let shown = format!("{name} {}", arguments.join(" "));
        Program { command, shown, limit: Duration::from_secs(900), log, good: &[0] }
    }

    /// Sets the exit codes that are no failure; without this call that is 0 alone.
    pub(crate) fn good(mut self, codes: &'static [i32]) -> Program {
        self.good = codes;
        self
    }

    /// Adds a variable to the program's environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Program {
        self.command.env(name, value);
        self
    }

    /// Bounds the time that it may take.
    pub(crate) fn limit(mut self, limit: Duration) -> Program {
        self.limit = limit;
        self
    }

    /// Runs it to its end; an error holds the command and the end of its output.
    pub(crate) fn run(mut self) -> Result<Output, String> {
        let fail = |what: String| format!("`{}` {what}", self.shown);
        let made = self.log.parent().map_or(Ok(()), std::fs::create_dir_all);
        let log = made.and_then(|()| File::create(&self.log)).and_then(|log| Ok((log.try_clone()?, log)));
        let (log, twin) = log.map_err(|error| fail(format!("has no place for its output: {error}")))?;
        self.command.stdin(Stdio::null()).stdout(log).stderr(twin).process_group(0);
        let mut running = groups();
        let mut child = self.command.spawn().map_err(|error| fail(format!("does not start: {error}")))?;
        let group = i32::try_from(child.id()).unwrap_or(0);
        running.push(group);
        drop(running);
        let (over, timer) = mpsc::channel::<()>();
        let limit = self.limit;
        let watch = std::thread::spawn(move || {
            let late = timer.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                kill_group(group);
            }
            late
        });
        let (leader, ended) = (Pid::from_raw(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        while waitid(Id::Pid(leader), ended) == Err(Errno::EINTR) {}
        let processor = processor_time(leader);
        drop(over);
        let late = watch.join().unwrap_or_default();
        // A child that still runs in its group would disturb the next step. Once the leader is reaped, the number of the group may
        // belong to another one.
        kill_group(group);
        groups().retain(|running| *running != group);
        let status = child.wait();

        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match status {
            _ if late => {
                Err(fail(format!("took longer than {} s and was killed\n{}", limit.as_secs(), tail(&text))))
            }
            Ok(status) if status.code().is_some_and(|code| self.good.contains(&code)) => {
                Ok(Output { text, processor })
            }
            Ok(status) => Err(fail(format!("failed ({status})\n{}", tail(&text)))),
            Err(error) => Err(fail(format!("could not be waited for: {error}"))),
        }
    }
}

/// How many lines of a panic's message are shown: a finding of the checker has about 20.
const MESSAGE: usize = 24;

/// Returns the last [`TAIL`] lines of `text`. Before them come the failures of the earlier lines, since the last ones may
/// be of another program that passed.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (above, end) = lines.split_at(lines.len().saturating_sub(TAIL));
    let failures = above.iter().enumerate().flat_map(|(at, line)| {
        let count = if line.contains(" panicked at ") {
            let over = |line: &&str| line.is_empty() || line.starts_with("stack backtrace:");
            above[at..].iter().position(over).unwrap_or(above.len() - at).min(MESSAGE)
        } else {
            usize::from(line.ends_with("... FAILED") || line.ends_with("over 60 seconds"))
        };
        &above[at..at + count]
    });
    failures.take(2 * TAIL).chain(end).copied().collect::<Vec<_>>().join("\n")
}

/// Whether a program of this name is on the search path.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_failed_far_above_the_end_is_shown() {
        let failed = "test a ... FAILED\ntest b has been running for over 60 seconds\n";
        let panic = "thread 'a' panicked at b:1\n[\n    Overlap,\n]\n";
        let end = "well\n".repeat(TAIL);
        let shown = tail(&format!("{failed}test c ... ok\n{panic}stack backtrace:\n0: d\n{end}"));
        assert_eq!(shown, format!("{failed}{panic}{end}").trim_end());
    }

    #[test]
    fn a_long_message_of_a_panic_is_cut() {
        let panic = format!("thread 'a' panicked at b:1\n{}", "why\n".repeat(MESSAGE));
        let shown = tail(&format!("{panic}{}", "well\n".repeat(TAIL)));
        assert_eq!(shown.lines().count(), MESSAGE + TAIL);
    }

    fn program(script: &str, folder: &TempDir) -> Program {
        Program::new("sh", &["-c", script], Path::new("/"), folder.path().join("log"))
    }

    #[test]
    fn a_failure_shows_the_command_and_its_output() {
        let folder = tempfile::tempdir().expect("a folder");
        let ran = program("echo sorry; exit 3", &folder);
        let error = ran.run().err().expect("exit 3 is a failure");
        assert!(
            error.contains("sh -c") && error.contains("exit status: 3") && error.contains("sorry"),
            "{error}"
        );
    }

    #[test]
    fn an_exit_code_that_tells_of_findings_is_no_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let exits = |code: i32| program(&format!("echo found; exit {code}"), &folder).good(&[0, 2]).run();
        assert!(exits(2).expect("a good code").text.contains("found"));
        assert!(exits(3).is_err());
    }

    #[test]
    fn the_processor_time_of_children_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        // The brackets make a child of the shell, for which it waits.
        let ran = program("(n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done); true", &folder);
        assert!(ran.run().expect("it ends").processor > Duration::ZERO);
    }

    #[test]
    fn a_program_is_started_with_no_signal_blocked() {
        stop_children_on_signals();
        let folder = tempfile::tempdir().expect("a folder");
        let ran = program("grep SigBlk /proc/self/status", &folder);
        let text = ran.run().expect("a program that runs").text;
        assert_eq!(text.split_whitespace().last(), Some("0000000000000000"), "{text}");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().expect("a folder");
        let ran = program("sleep 600 & wait", &folder).limit(Duration::from_millis(100));
        let error = ran.run().err().expect("it hangs");
        assert!(error.contains("was killed"), "{error}");
    }
}
