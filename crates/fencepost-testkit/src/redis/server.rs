//! One Redis server.

use super::config::Config;
use super::look::Look;
use crate::faults::{Fault, Faults};
use crate::needs::REDIS;
use crate::server::clock;
use crate::server::{Plan, Server, certify, process_faults};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running `redis-server`.
pub struct Redis {
    server: Server,
    config: Config,
}

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start(config: &Config) -> io::Result<Redis> {
        Redis::launch("redis", config.clone().of_server(), &[])
    }

    /// Starts a server with a name and more arguments.
    pub(super) fn launch(
        name: &'static str,
        config: Config,
        arguments: &'static [&'static str],
    ) -> io::Result<Redis> {
        let own = config.clone();
        let mut plan = Plan::new(name, move |port, dir| command(&own, port, dir, arguments));
        plan.ready = Box::new(|_, dir| answers(dir));
        Ok(Redis { server: Server::start(plan)?, config })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Returns its URL: `redis://127.0.0.1:PORT`, with its user and password.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns its URL with another address, such as a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let scheme = if self.config.tls { "rediss" } else { "redis" };
        format!("{scheme}://{}{address}", self.credentials())
    }

    /// Returns its URL with its Unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}{}", self.credentials(), self.server.dir().join("redis.sock").display())
    }

    /// Returns `user:password@`, as far as the server has them.
    pub(super) fn credentials(&self) -> String {
        match (&self.config.user, &self.config.password) {
            (Some((name, password)), _) => format!("{name}:{password}@"),
            (None, Some(password)) => format!(":{password}@"),
            (None, None) => String::new(),
        }
    }

    /// Returns the certificate of a server with [`Config::tls`], which is also its authority.
    pub fn certificate(&self) -> PathBuf {
        self.server.dir().join("cert.pem")
    }

    /// Returns the key of that certificate.
    pub fn key(&self) -> PathBuf {
        self.server.dir().join("key.pem")
    }

    /// Makes another certificate and key, which are in use after the next start. The server must have TLS.
    ///
    /// # Errors
    /// Returns an error if there is no `openssl`.
    pub fn rotate(&self) -> io::Result<()> {
        certify(self.server.dir())
    }

    /// Stops its wall clock at `micros`, in microseconds since 1970, until the next call. The server needs
    /// [`Config::clock`].
    ///
    /// # Errors
    /// Returns an error if it has no such clock.
    /// It has no such clock.
    pub fn still(&mut self, micros: u64) -> io::Result<()> {
        clock::still(self.server.dir(), micros)
    }

    /// Returns a connection to inspect it.
    ///
    /// # Panics
    /// Panics if it does not answer.
    pub fn look(&self) -> Look {
        self.try_look().expect("the server answers its operator")
    }

    /// Returns a connection to inspect it.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub fn try_look(&self) -> io::Result<Look> {
        Look::into(self.server.dir(), self.config.password.as_deref())
    }
}

fn command(config: &Config, port: u16, dir: &Path, arguments: &[&str]) -> Command {
    prepare(config, port, dir)
        .unwrap_or_else(|error| panic!("the server's folder cannot be prepared: {error}"));
    let mut command = Command::new(REDIS.program("redis-server"));
    command.arg(dir.join("redis.conf")).args(arguments);
    if config.clock {
        clock::follow(&mut command, dir);
    }
    command
}

fn prepare(config: &Config, port: u16, dir: &Path) -> io::Result<()> {
    // The file of this port stays: it may have been rewritten by the server, which reads it again when it
    // restarts.
    let marker = dir.join("port");
    let mark = port.to_string();
    if std::fs::read_to_string(&marker).is_ok_and(|text| text == mark) {
        return Ok(());
    }
    if config.clock {
        clock::prepare(dir)?;
    }
    if config.tls {
        certify(dir)?;
    }
    std::fs::write(dir.join("redis.conf"), config.file(port, dir))?;
    std::fs::write(marker, mark)
}

/// Whether it replies to a PING. An error reply counts: it may require a password, or have no master.
fn answers(dir: &Path) -> bool {
    let ask = || -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(dir.join("redis.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = vec![0; 64];
        let count = stream.read(&mut answer)?;
        answer.truncate(count);
        Ok(answer)
    };
    ask().is_ok_and(|answer| !answer.is_empty() && !answer.starts_with(b"-LOADING"))
}

impl Faults for Redis {
    process_faults!();

    fn jump(&mut self, seconds: i64) -> Result<(), Fault> {
        if !self.config.clock {
            return Err(Fault::NotSupported("clock jump"));
        }
        Ok(clock::step(self.server.dir(), seconds)?)
    }
}
