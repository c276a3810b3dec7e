//! How a server is set up.

use std::fmt::Write;
use std::path::Path;

/// What a test wants of a server; by default it keeps nothing on disk, asks for no password and evicts nothing.
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
    /// The default.
    pub fn new() -> Config {
        Config::default()
    }

    /// One more line of the configuration file.
    pub fn line(mut self, line: impl Into<String>) -> Config {
        self.lines.push(line.into());
        self
    }

    /// A line that one of the configuration's own overrides: of two the later counts.
    pub(super) fn standard(mut self, line: &str) -> Config {
        self.lines.insert(0, line.to_owned());
        self
    }

    /// Every write is on the disk before it is answered, so that a killed server comes back with all it ever granted.
    pub fn durable(self) -> Config {
        self.line("appendonly yes").line("appendfsync always")
    }

    /// At most so many bytes, and what happens then: `noeviction`, `allkeys-lru` and so on.
    pub fn memory(self, bytes: u64, policy: &str) -> Config {
        self.line(format!("maxmemory {bytes}")).line(format!("maxmemory-policy {policy}"))
    }

    /// Who doesn't give this password may do nothing.
    pub fn password(mut self, password: &str) -> Config {
        self.password = Some(password.to_owned());
        self
    }

    /// One more user, who may do everything. [`Redis::url`](super::Redis::url) is then theirs.
    pub fn user(mut self, name: &str, password: &str) -> Config {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Its wall clock can be stepped with [`Faults::jump`](crate::faults::Faults::jump).
    pub fn clock(mut self) -> Config {
        self.clock = true;
        self
    }

    /// It speaks TLS on its port, and nothing else. The certificate is in [`Redis::certificate`](super::Redis::certificate).
    pub fn tls(mut self) -> Config {
        self.tls = true;
        self
    }

    /// It speaks TLS, with those alone who have its own certificate and key.
    pub fn mutual_tls(mut self) -> Config {
        self.mutual = true;
        self.tls()
    }

    /// The file, for a port and a folder.
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

    /// What only a server has, and a sentinel has not.
    pub(super) fn of_server(self) -> Config {
        self.line("save \"\"")
            .line("maxclients 20000")
            .line("enable-debug-command yes")
            // A replica that has just come is served at once, not with others that might come.
            .line("repl-diskless-sync-delay 0")
    }
}
