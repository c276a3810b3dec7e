//! One MariaDB server.

use super::{give, output, unprivileged};
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Server, process_faults};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// A running `mariadbd` with an empty database `fencepost`.
pub struct MariaDb {
    server: Server,
}

impl MariaDb {
    /// Starts a server and waits until it accepts statements.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start() -> io::Result<MariaDb> {
        let mut plan = Plan::new("mariadb", |port, dir| {
            command(port, dir).unwrap_or_else(|error| panic!("MariaDB cannot be started: {error}"))
        });
        plan.ready = Box::new(|port, _| run(port, None, "SELECT 1").is_ok());
        let server = Server::start(plan)?;
        run(server.port(), None, "CREATE DATABASE fencepost")?;
        Ok(MariaDb { server })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns its URL, with the user and the database.
    pub fn url(&self) -> String {
        format!("mariadb://root@{}/fencepost", self.address())
    }

    /// Runs statements as the superuser. Returns a line for each row, its columns separated by tabs.
    ///
    /// # Errors
    /// Returns the server's message for the first statement that fails.
    pub fn run(&self, statements: &str) -> io::Result<String> {
        run(self.address().port(), Some("fencepost"), statements)
    }
}

fn run(port: u16, database: Option<&str>, statements: &str) -> io::Result<String> {
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp", "--host=127.0.0.1"]);
    client.arg("--user=root").arg(format!("--port={port}")).args(database);
    output(&mut client, statements)
}

fn command(port: u16, dir: &Path) -> io::Result<Command> {
    let data = dir.join("data");
    if !data.exists() {
        give(dir)?;
        let mut install = unprivileged("mariadb-install-db")?;
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        output(install.current_dir(dir).arg(format!("--datadir={}", data.display())), "")?;
    }
    let mut command = unprivileged("/usr/sbin/mariadbd")?;
    command.current_dir(dir).args(["--no-defaults", "--bind-address=127.0.0.1"]);
    command.arg(format!("--datadir={}", data.display())).arg(format!("--port={port}"));
    command.arg(format!("--socket={}", dir.join("socket").display()));
    Ok(command)
}

impl Faults for MariaDb {
    process_faults!();
}
