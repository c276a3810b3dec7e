//! The configuration of a server.

use crate::needs::REDIS;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// The configuration of a server. By default it keeps nothing on disk, has no password and evicts nothing.
#[derive(Debug, Clone, Default)]
pub struct Config {
    lines: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) user: Option<(String, String)>,
    pub(super) clock: bool,
    pub(super) tls: bool,
    mutual: bool,
}

impl Config {
    /// Returns the default.
    pub fn new() -> Config {
        Config::default()
    }

    /// Adds a line to the configuration file.
    pub fn line(mut self, line: impl Into<String>) -> Config {
        self.lines.push(line.into());
        self
    }

    /// Adds a line that a line of the test overrides: the later of two lines counts.
    pub(super) fn standard(mut self, line: &str) -> Config {
        self.lines.insert(0, line.to_owned());
        self
    }

    /// Writes to the disk before each reply, so that a killed server restarts with every grant.
    pub fn durable(self) -> Config {
        self.line("appendonly yes").line("appendfsync always")
    }

    /// Limits the memory to this number of bytes. The policy is `noeviction`, `allkeys-lru` and so on.
    pub fn memory(self, bytes: u64, policy: &str) -> Config {
        self.line(format!("maxmemory {bytes}")).line(format!("maxmemory-policy {policy}"))
    }

    /// Requires this password for every command.
    pub fn password(mut self, password: &str) -> Config {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user with all rights. [`Redis::url`](super::Redis::url) is then for this user.
    pub fn user(mut self, name: &str, password: &str) -> Config {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Gives it a wall clock that [`Faults::jump`](crate::faults::Faults::jump) can step.
    pub fn clock(mut self) -> Config {
        self.clock = true;
        self
    }

    /// Speaks only TLS on its port. The certificate is in [`Redis::certificate`](super::Redis::certificate).
    pub fn tls(mut self) -> Config {
        self.tls = true;
        self
    }

    /// Speaks only TLS, and requires a client certificate: its own certificate and key.
    pub fn mutual_tls(mut self) -> Config {
        self.mutual = true;
        self.tls()
    }

    /// Returns the file's text, for a port and a folder.
    pub(super) fn file(&self, port: u16, dir: &Path) -> String {
        let dir = dir.display();
        let mut file = format!(
            "port {plain}\nbind 127.0.0.1\nunixsocket {dir}/redis.sock\ndir {dir}\nprotected-mode no\ndaemonize no\n",
            plain = if self.tls { 0 } else { port },
        );
        let mut line = |line: &str| writeln!(file, "{line}").expect("a string takes everything");
        if self.tls {
            let auth = if self.mutual { "yes" } else { "no" };
            line(&format!("tls-port {port}\ntls-auth-clients {auth}\ntls-ca-cert-file {dir}/cert.pem"));
            line(&format!("tls-cert-file {dir}/cert.pem\ntls-key-file {dir}/key.pem"));
        }
        if let Some(password) = &self.password {
            line(&format!("requirepass {password}\nmasterauth {password}"));
        }
        if let Some((name, password)) = &self.user {
            line(&format!("user {name} on >{password} ~* &* +@all"));
        }
        self.lines.iter().for_each(|own| line(own));
        file
    }

    /// Adds the lines that a server has and a sentinel does not.
    pub(super) fn of_server(self) -> Config {
        let config = self.line("save \"\"").line("maxclients 20000");
        let config = if is_redis_6() { config } else { config.line("enable-debug-command yes") };
        // Serves a new replica at once. By default the server waits for more replicas.
        config.line("repl-diskless-sync-delay 0")
    }
}

/// Returns whether the server is Redis 6, which permits DEBUG without a line in its configuration.
pub(super) fn is_redis_6() -> bool {
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let said = Command::new(REDIS.program("redis-server")).arg("--version").output();
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(" v=6."))
    });
    *ANSWER
}
