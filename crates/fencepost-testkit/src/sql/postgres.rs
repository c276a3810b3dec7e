//! One PostgreSQL server.

use super::{accepts, apart, give, make_data, output, unprivileged};
use crate::faults::{Fault, Faults};
use crate::needs::POSTGRES;
use crate::server::{self, Plan, Server, Standalone, certify, clock};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio_postgres::{Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

/// The superuser of the server, who needs no password.
pub(super) const USER: &str = "fencepost";

/// The time in which the backends of a killed server end.
const BACKENDS_END: Duration = Duration::from_secs(60);

/// The arguments of `initdb`. Each server copies the folder, and would copy 16 MB of an empty log.
const INITDB: [&str; 7] =
    ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "--username", USER, "--wal-segsize=1"];

/// Leaves the databases `postgres` and `template0`: a new database names its template.
const NO_TEMPLATE: &str =
    "UPDATE pg_database SET datistemplate = false WHERE datname = 'template1';\nDROP DATABASE template1;\n";

/// A running `postgres` with an empty database `postgres`.
pub struct Postgres {
    server: Server,
    has_clock: bool,
}

impl Postgres {
    /// Starts a server and waits until it accepts statements.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start() -> io::Result<Postgres> {
        Postgres::start_with(false, false)
    }

    /// Starts a server whose wall clock [`Faults::jump`] can step.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start, or if there is no C compiler.
    pub fn start_clock() -> io::Result<Postgres> {
        Postgres::start_with(false, true)
    }

    /// Starts a server that accepts TLS as well, with its [certificate](Postgres::certificate).
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start_tls() -> io::Result<Postgres> {
        Postgres::start_with(true, false)
    }

    /// Returns the file of its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.server.dir().join("cert.pem")
    }

    /// Makes another certificate and key, which are in use after the next start. The server must have TLS.
    ///
    /// # Errors
    /// Returns an error if there is no `openssl`.
    pub fn rotate(&self) -> io::Result<()> {
        certify_owned(self.server.dir())
    }

    fn start_with(tls: bool, has_clock: bool) -> io::Result<Postgres> {
        let mut plan = Plan::new("postgres", move |port, dir| {
            let command = command(port, dir, tls)
                .and_then(|command| if has_clock { clock::with(command, dir) } else { Ok(command) });
            command.unwrap_or_else(|error| panic!("PostgreSQL cannot be started: {error}"))
        });
        plan.ready = Box::new(|port, _| accepts(port) && run(port, "SELECT 1").is_ok());
        Ok(Postgres { server: Server::start(plan)?, has_clock })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns its URL, with the user and the database.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Runs statements as the superuser, in one transaction if they begin none. Returns a line for each row, its columns separated by
    /// `|`, and a line such as `1 changed` for each statement that returns no rows.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn run(&self, statements: &str) -> io::Result<String> {
        run(self.address().port(), statements)
    }

    /// Runs a script by `psql`, which begins a transaction for each statement.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn script(&self, statements: &str) -> io::Result<()> {
        // Not the one of the search path, which Debian makes a Perl script that takes ten times as long.
        let mut psql = Command::new(installed()?.join("psql"));
        psql.args(["--no-psqlrc", "--set=ON_ERROR_STOP=1", "--file=-", "--host=127.0.0.1"]);
        psql.args(["--username", USER, "--dbname=postgres"]).arg(format!("--port={}", self.address().port()));
        output(&mut psql, statements).map(drop)
    }
}

pub(super) fn run(port: u16, statements: &str) -> io::Result<String> {
    let mut config = Config::new();
    config.host("127.0.0.1").port(port).user(USER).dbname("postgres");
    let answers = apart(async {
        let (client, connection) = config.connect(NoTls).await?;
        let connection = tokio::spawn(connection);
        let answers = client.simple_query(statements).await;
        drop(client);
        // It tells the server that the session ends.
        connection.await.expect("no panic")?;
        answers
    });
    Ok(lines(answers?.map_err(message)?))
}

fn lines(answers: Vec<SimpleQueryMessage>) -> String {
    let (mut lines, mut rows) = (String::new(), false);
    for answer in answers {
        match answer {
            SimpleQueryMessage::RowDescription(_) => rows = true,
            SimpleQueryMessage::Row(row) => lines += &line(&row),
            SimpleQueryMessage::CommandComplete(_) if rows => rows = false,
            SimpleQueryMessage::CommandComplete(count) => lines += &format!("{count} changed\n"),
            _ => {}
        }
    }
    lines
}

fn line(row: &SimpleQueryRow) -> String {
    let columns: Vec<_> = (0..row.len()).map(|at| row.get(at).unwrap_or_default()).collect();
    columns.join("|") + "\n"
}

/// The server's message and its hints.
fn message(error: tokio_postgres::Error) -> io::Error {
    error
        .as_db_error()
        .map(|error| error.to_string())
        .map_or_else(|| io::Error::other(error), io::Error::other)
}

fn command(port: u16, dir: &Path, tls: bool) -> io::Result<Command> {
    let programs = POSTGRES.folder().map_or_else(installed, Ok)?;
    let data = dir.join("data");
    if !data.exists() {
        give(dir)?;
        make_data(&programs.join("postgres"), &data, &[&INITDB[..], &[NO_TEMPLATE]].concat(), || {
            let mut initdb = unprivileged(programs.join("initdb"))?;
            initdb.args(INITDB);
            output(initdb.current_dir(dir).arg("--pgdata").arg(&data), "")?;
            // A third of the files that each server copies.
            let mut single = unprivileged(programs.join("postgres"))?;
            single.arg("--single").arg("-D").arg(&data).arg("postgres");
            output(single.current_dir(dir), NO_TEMPLATE)?;
            // It ends with 0 after an error, too. Database 1 is template1.
            if data.join("base/1").exists() {
                return Err(io::Error::other("template1 was not dropped"));
            }
            Ok(())
        })?;
    }
    let mut command = unprivileged(programs.join("postgres"))?;
    // The socket's folder is the server's own: its usual one belongs to the system's server.
    command.current_dir(dir).arg("-D").arg(&data).arg("-k").arg(dir);
    command.args(["-h", "127.0.0.1", "-p"]).arg(port.to_string());
    // A case of the conformance suite makes more than a hundred clients.
    command.args(["-c", "max_connections=1100", "-c", "shared_preload_libraries=pg_stat_statements"]);
    // Each connection is a process, and maps these pages. The default is 128 MB.
    command.args(["-c", "shared_buffers=16MB"]);
    // In the folder of the server: one that is killed would leave its segments in /dev/shm.
    command.args(["-c", "dynamic_shared_memory_type=mmap"]);
    if tls {
        if !dir.join("cert.pem").exists() {
            certify_owned(dir)?;
        }
        command.args(["-c", "ssl=on", "-c"]).arg(format!("ssl_cert_file={}", dir.join("cert.pem").display()));
        command.arg("-c").arg(format!("ssl_key_file={}", dir.join("key.pem").display()));
        command.arg("-c").arg(format!("ssl_ca_file={}", dir.join("cert.pem").display()));
    }
    Ok(command)
}

/// A server that is killed leaves a segment of shared memory, and the system has room for some thousand of them.
impl Drop for Postgres {
    fn drop(&mut self) {
        let lock = std::fs::read_to_string(self.server.dir().join("data/postmaster.pid")).unwrap_or_default();
        let _ = self.server.kill();
        // Its seventh line: the key and the id of the segment.
        if let Some(id) = lock.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
    }
}

/// Makes a certificate and its key, which belong to the user of the server.
fn certify_owned(dir: &Path) -> io::Result<()> {
    certify(dir)?;
    ["cert.pem", "key.pem"].iter().try_for_each(|file| give(&dir.join(file)))
}

/// Finds the folder of the newest installed server. Debian keeps it out of PATH.
fn installed() -> io::Result<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql")? {
        let path = entry?.path();
        let version = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        if let Some(version) = version
            && path.join("bin/postgres").exists()
        {
            versions.push((version, path.join("bin")));
        }
    }
    let newest = versions.into_iter().max().map(|(_, programs)| programs);
    newest.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no PostgreSQL server is installed"))
}

impl Faults for Postgres {
    fn kill(&mut self) -> Result<(), Fault> {
        self.server.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        let end = Instant::now() + BACKENDS_END;
        loop {
            match self.server.restart() {
                // The backends of a killed server end by themselves, and it does not start before.
                Err(error) if error.to_string().contains("still in use") && Instant::now() < end => {}
                outcome => return outcome,
            }
        }
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.server.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.server.cont()
    }

    fn jump(&mut self, seconds: i64) -> Result<(), Fault> {
        if !self.has_clock {
            return Err(Fault::NotSupported("clock jump"));
        }
        Ok(clock::step(self.server.dir(), seconds)?)
    }
}

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub type ProxiedPostgres = server::Proxied<Postgres>;

impl ProxiedPostgres {
    /// Runs statements as [`Postgres::run`] does, past the proxy.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn run(&self, statements: &str) -> io::Result<String> {
        self.with(|server| server.run(statements))
    }
}

impl Standalone for Postgres {
    type Config = ();

    fn start((): &()) -> io::Result<Postgres> {
        Postgres::start()
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{USER}@{address}/postgres")
    }
}
