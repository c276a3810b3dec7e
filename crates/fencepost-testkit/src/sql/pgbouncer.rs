//! A pgbouncer in front of a PostgreSQL server.

use super::postgres::{Postgres, run};
use super::{give, unprivileged};
use crate::server::{Plan, Server};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// A running pgbouncer, which connects to a server as its superuser.
pub struct PgBouncer {
    server: Server,
}

impl PgBouncer {
    /// Starts a pooler for `postgres` with `mode`: `session`, `transaction` or `statement`.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start(postgres: &Postgres, mode: &'static str) -> io::Result<PgBouncer> {
        PgBouncer::start_with(postgres, mode, "")
    }

    /// The same with a setting more, such as `query_timeout = 1`.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start_with(
        postgres: &Postgres,
        mode: &'static str,
        setting: &'static str,
    ) -> io::Result<PgBouncer> {
        let target = postgres.address().port();
        let mut plan = Plan::new("pgbouncer", move |port, dir| {
            command(port, target, dir, &format!("pool_mode = {mode}\n{setting}"))
                .unwrap_or_else(|error| panic!("pgbouncer cannot be started: {error}"))
        });
        plan.ready = Box::new(|port, _| run(port, "SELECT 1").is_ok());
        Ok(PgBouncer { server: Server::start(plan)? })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the URL of the server through the pooler.
    pub fn url(&self) -> String {
        format!("postgres://{}@{}/postgres", super::postgres::USER, self.address())
    }
}

fn command(port: u16, target: u16, dir: &Path, settings: &str) -> io::Result<Command> {
    give(dir)?;
    let file = dir.join("pgbouncer.ini");
    let user = super::postgres::USER;
    let text = format!(
        "[databases]\npostgres = host=127.0.0.1 port={target} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nauth_type = any\nunix_socket_dir =\nmax_client_conn = 200\n\
         default_pool_size = 50\n{settings}\n"
    );
    std::fs::write(&file, text)?;
    let mut command = unprivileged("/usr/sbin/pgbouncer")?;
    command.current_dir(dir).arg(file);
    Ok(command)
}
