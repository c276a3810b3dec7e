//! SQL servers: one PostgreSQL, with a pooler, one MariaDB.

mod jumps;
mod mariadb;
mod pgbouncer;
mod postgres;

pub use jumps::hold_through_jumps;
pub use mariadb::{MariaDb, ProxiedMariaDb};
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, ProxiedPostgres};

use nix::unistd::{Uid, User};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

/// The user under which a server runs if the test runs as root: PostgreSQL refuses root.
const USER: &str = "nobody";

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

fn user() -> io::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let user = User::from_name(USER)?;
    user.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no user {USER}")))
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
