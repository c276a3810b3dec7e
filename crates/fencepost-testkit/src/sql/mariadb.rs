//! One MariaDB or MySQL server.

use super::{accepts, apart, give, make_data, output, unprivileged};
use crate::faults::{Fault, Faults};
use crate::needs::MARIADB;
use crate::server::{self, Plan, Server, Standalone, certify, clock, process_faults};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row, Value};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of the data folder has the whole log in it. The default is 96 MB.
const LOG_SIZE: &str = "--innodb-log-file-size=8M";
/// The same for MySQL, without a second port, and without the folder that a package of the system makes.
const MYSQL: [&str; 3] = ["--innodb-redo-log-capacity=8M", "--mysqlx=OFF", "--secure-file-priv=NULL"];

/// Returns the server's program, and whether it is MySQL's.
fn server() -> (PathBuf, bool) {
    let mysql = MARIADB.folder().map(|folder| folder.join("mysqld")).filter(|program| program.exists());
    mysql.map_or_else(|| (MARIADB.program("/usr/sbin/mariadbd"), false), |program| (program, true))
}

/// A running `mariadbd` with an empty database `fencepost`.
pub struct MariaDb {
    server: Server,
    has_clock: bool,
}

impl MariaDb {
    /// Starts a server and waits until it accepts statements.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start() -> io::Result<MariaDb> {
        MariaDb::start_with(false, false, &[])
    }

    /// Starts a server that accepts TLS as well, with its [certificate](MariaDb::certificate).
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start_tls() -> io::Result<MariaDb> {
        MariaDb::start_with(true, false, &[])
    }

    /// Starts a server with these options.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start_options(options: &'static [&'static str]) -> io::Result<MariaDb> {
        MariaDb::start_with(false, false, options)
    }

    /// Starts a server whose wall clock [`Faults::jump`] can step.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start, or if there is no C compiler.
    pub fn start_clock() -> io::Result<MariaDb> {
        MariaDb::start_with(false, true, &[])
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

    fn start_with(tls: bool, has_clock: bool, options: &'static [&'static str]) -> io::Result<MariaDb> {
        let mut plan = Plan::new("mariadb", move |port, dir| {
            command(port, dir, tls, options)
                .and_then(|command| if has_clock { clock::with(command, dir) } else { Ok(command) })
                .unwrap_or_else(|error| panic!("MariaDB cannot be started: {error}"))
        });
        plan.ready = Box::new(|port, _| accepts(port) && run(port, None, "SELECT 1").is_ok());
        let server = Server::start(plan)?;
        run(server.port(), None, "CREATE DATABASE fencepost")?;
        Ok(MariaDb { server, has_clock })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns its URL, with the user and the database.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Runs statements as the superuser. Returns a line for each row, its columns separated by tabs.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn run(&self, statements: &str) -> io::Result<String> {
        run(self.address().port(), Some("fencepost"), statements)
    }
}

/// Speaks to the server by a driver: the start of a client's program costs more than most statements.
fn run(port: u16, database: Option<&str>, statements: &str) -> io::Result<String> {
    let options = OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(port).prefer_socket(false);
    // Given here, the driver does not ask the server for them.
    let options = options.max_allowed_packet(Some(16 << 20)).wait_timeout(Some(60));
    let options = options.user(Some("root")).db_name(database);
    let rows = apart(async {
        let mut conn = Conn::new(options).await?;
        let mut results = conn.query_iter(statements).await?;
        let mut rows = Vec::new();
        while !results.is_empty() {
            rows.extend(results.collect::<Row>().await?);
        }
        drop(results);
        conn.disconnect().await?;
        Ok::<_, mysql_async::Error>(rows)
    });
    Ok(rows?.map_err(io::Error::other)?.into_iter().map(line).collect())
}

fn line(row: Row) -> String {
    let column = |value| match value {
        Value::Bytes(text) => String::from_utf8_lossy(&text).into_owned(),
        _ => "NULL".to_owned(),
    };
    row.unwrap().into_iter().map(column).collect::<Vec<_>>().join("\t") + "\n"
}

fn command(port: u16, dir: &Path, tls: bool, options: &[&str]) -> io::Result<Command> {
    let (data, (server, mysql)) = (dir.join("data"), server());
    let own: &[&str] = if mysql { &MYSQL } else { &[LOG_SIZE] };
    if !data.exists() {
        give(dir)?;
        let (program, recipe) = if mysql {
            (server.clone(), &["--no-defaults", "--initialize-insecure"][..])
        } else {
            let normal = "--auth-root-authentication-method=normal";
            (MARIADB.program("mariadb-install-db"), &["--no-defaults", normal, "--skip-test-db"][..])
        };
        let recipe = [recipe, own].concat();
        make_data(&server, &data, &recipe, || {
            let mut install = unprivileged(program)?;
            install.args(&recipe);
            // Servers that start at the same time would remove each other's temporary tables.
            install.env("TMPDIR", dir);
            output(install.current_dir(dir).arg(format!("--datadir={}", data.display())), "").map(drop)
        })?;
    }
    let mut command = unprivileged(&server)?;
    command.env("TMPDIR", dir).current_dir(dir).args(["--no-defaults", "--bind-address=127.0.0.1"]);
    command.arg(format!("--datadir={}", data.display())).arg(format!("--port={port}"));
    command.arg(format!("--socket={}", dir.join("socket").display()));
    // A case of the conformance suite makes more than a hundred clients.
    command.arg("--max-connections=1100").args(own).args(options);
    if tls {
        if !dir.join("cert.pem").exists() {
            certify_owned(dir)?;
        }
        command.arg(format!("--ssl-cert={}", dir.join("cert.pem").display()));
        command.arg(format!("--ssl-key={}", dir.join("key.pem").display()));
        command.arg(format!("--ssl-ca={}", dir.join("cert.pem").display()));
    } else if !mysql {
        // MariaDB 11.4 would make a certificate at each start, which takes seconds.
        command.arg("--skip-ssl");
    }
    Ok(command)
}

/// Makes a certificate and its key, which belong to the user of the server.
fn certify_owned(dir: &Path) -> io::Result<()> {
    certify(dir)?;
    ["cert.pem", "key.pem"].iter().try_for_each(|file| give(&dir.join(file)))
}

impl Faults for MariaDb {
    process_faults!();

    fn jump(&mut self, seconds: i64) -> Result<(), Fault> {
        if !self.has_clock {
            return Err(Fault::NotSupported("clock jump"));
        }
        Ok(clock::step(self.server.dir(), seconds)?)
    }
}

/// A server and the proxy in front of it, with all hooks. Clones share the server.
pub type ProxiedMariaDb = server::Proxied<MariaDb>;

impl ProxiedMariaDb {
    /// Runs statements as [`MariaDb::run`] does, past the proxy.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn run(&self, statements: &str) -> io::Result<String> {
        self.with(|server| server.run(statements))
    }
}

impl Standalone for MariaDb {
    type Config = ();

    fn start((): &()) -> io::Result<MariaDb> {
        MariaDb::start()
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        format!("mariadb://root@{address}/fencepost")
    }
}
