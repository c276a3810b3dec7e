//! SQL servers: one PostgreSQL, with a pooler, one MariaDB.

mod cleaning;
mod deleted;
mod fixed;
mod fixture;
mod impatient;
mod jumps;
mod mariadb;
mod pgbouncer;
mod postgres;
mod runs;
mod stopped;

pub use cleaning::CleaningClient;
pub use deleted::DeletedRows;
pub use fixed::{
    a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted, evicted_holders_with_fixed_leases_are_told,
};
pub use fixture::{SqlMode, SqlServer};
pub use impatient::impatient_callers;
pub use jumps::hold_through_jumps;
pub use mariadb::{MariaDb, ProxiedMariaDb};
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, ProxiedPostgres};
pub use runs::old_runs_are_deleted;
pub use stopped::a_stopped_process_holds_up_nobody_for_its_lease;

use crate::server::{Proxied, Standalone};
use fencepost_core::sync::Mutex;
use nix::unistd::{Uid, User};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The user under which a server runs if the test runs as root: PostgreSQL refuses root.
const USER: &str = "nobody";

/// The time in which the statements of a test are answered.
const STATEMENTS: Duration = Duration::from_secs(60);

/// A server that runs statements as an administrator.
pub trait Runs: Standalone<Config = ()> + Send + 'static {
    /// Starts a server whose wall clock can be stepped.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    fn start_clock() -> io::Result<Self>;

    /// Runs statements. Returns a line for each row.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    fn run(&self, statements: &str) -> io::Result<String>;

    /// Ends all connections of clients and removes all that they made.
    ///
    /// # Errors
    /// Returns an error if a statement fails, or if connections do not end soon.
    fn clear(&self) -> io::Result<()>;

    /// Returns the servers of this test program that no case uses.
    fn spares() -> &'static Mutex<Vec<Proxied<Self>>>;
}

impl Runs for Postgres {
    fn start_clock() -> io::Result<Postgres> {
        Postgres::start_clock()
    }

    fn run(&self, statements: &str) -> io::Result<String> {
        Postgres::run(self, statements)
    }

    fn clear(&self) -> io::Result<()> {
        let statements = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity \
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid(); \
            DROP SCHEMA IF EXISTS fencepost CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public;";
        // A connection that has ended by itself since is answered with `f`. One that does not end keeps its locks, and the rest waits.
        self.run(statements).map(drop)
    }

    fn spares() -> &'static Mutex<Vec<Proxied<Postgres>>> {
        static SPARES: Mutex<Vec<Proxied<Postgres>>> = Mutex::new(Vec::new());
        &SPARES
    }
}

impl Runs for MariaDb {
    fn start_clock() -> io::Result<MariaDb> {
        MariaDb::start_clock()
    }

    fn run(&self, statements: &str) -> io::Result<String> {
        MariaDb::run(self, statements)
    }

    fn clear(&self) -> io::Result<()> {
        let end = Instant::now() + STATEMENTS;
        loop {
            let others = self.run(
                "SELECT CONCAT('KILL ', id, ';') FROM information_schema.PROCESSLIST \
                 WHERE user = 'root' AND id <> CONNECTION_ID()",
            )?;
            if others.is_empty() {
                return self.run("DROP DATABASE fencepost; CREATE DATABASE fencepost;").map(drop);
            }
            if Instant::now() > end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("they do not end: {others}")));
            }
            // One that has ended by itself since then cannot be killed.
            let _ = self.run(&others);
        }
    }

    fn spares() -> &'static Mutex<Vec<Proxied<MariaDb>>> {
        static SPARES: Mutex<Vec<Proxied<MariaDb>>> = Mutex::new(Vec::new());
        &SPARES
    }
}

/// Returns a command that runs `program` as [`USER`] if the test runs as root, else as the test's user.
fn unprivileged(program: impl AsRef<OsStr>) -> io::Result<Command> {
    let Some(user) = user()? else { return Ok(Command::new(program)) };
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
    command.arg("--clear-groups").arg("--").arg(program);
    Ok(command)
}

/// Gives `folder` to the user of [`unprivileged`].
fn give(folder: &Path) -> io::Result<()> {
    match user()? {
        Some(user) => chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())),
        None => Ok(()),
    }
}

/// Makes the data folder of a server by `make`, or by a copy of the one that this build made before: that takes a fifth of the time.
/// The original of the copies stands beside the test program. Another version of the program `server`, another
/// user and another `recipe`, the arguments of `make`, have an original of their own.
fn make_data(
    server: &Path,
    data: &Path,
    recipe: &[&str],
    make: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let name = server.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = std::env::current_exe()?;
    let file = server.metadata()?;
    let mut hasher = DefaultHasher::new();
    (file.mtime(), file.ino(), Uid::effective().as_raw(), recipe).hash(&mut hasher);
    let original = program.with_file_name(format!("fencepost-{name}-{:016x}", hasher.finish()));
    if original.exists() {
        return copy(&original, data);
    }
    make()?;
    // Two tests may do this at once. The rename is atomic, and fails for the second one.
    let own = data.parent().and_then(Path::file_name).unwrap_or_default();
    let part = original.with_extension(own);
    copy(data, &part)?;
    if std::fs::rename(&part, &original).is_err() {
        std::fs::remove_dir_all(&part)?;
    }
    Ok(())
}

/// Copies a folder with its owners.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    output(Command::new("cp").arg("--archive").arg("--no-target-directory").arg(from).arg(to), "").map(drop)
}

fn user() -> io::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let user = User::from_name(USER)?;
    user.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no user {USER}")))
}

/// Whether a server accepts connections at this port of the loopback interface: a cheaper question than one by a client's program.
fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Runs a future on a thread and a runtime of its own: the caller may be a task of another runtime.
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut) after 60 s (`STATEMENTS`).
fn apart<F: Future<Output: Send> + Send>(future: F) -> io::Result<F::Output> {
    std::thread::scope(|scope| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let limited = async { tokio::time::timeout(STATEMENTS, future).await };
        Ok(scope.spawn(move || runtime.block_on(limited)).join().expect("no panic")?)
    })
}

/// Runs `command` to its end with `input` as its standard input.
///
/// # Errors
/// Returns an error with the command's standard error if it fails.
fn output(command: &mut Command, input: &str) -> io::Result<String> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The input is shorter than a pipe's buffer, so this does not wait for the command.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {text}", output.status)));
    }
    written?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
