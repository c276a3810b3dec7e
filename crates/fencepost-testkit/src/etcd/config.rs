//! The configuration of a server.

use crate::needs::ETCD;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The configuration of a server. By default it starts fast, and has no password and no TLS.
#[derive(Debug, Clone)]
pub struct Config {
    heartbeat: u32,
    pub(super) tls: bool,
    memory: bool,
    jwt: bool,
    client_certificates: bool,
    arguments: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            heartbeat: 20,
            tls: false,
            memory: false,
            jwt: false,
            client_certificates: false,
            arguments: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the default.
    pub fn new() -> Config {
        Config::default()
    }

    /// Sets the interval of the leader's heartbeats, in milliseconds. An election starts when ten are
    /// missing. etcd's own default is 100.
    pub fn heartbeat(mut self, millis: u32) -> Config {
        self.heartbeat = millis;
        self
    }

    /// Adds an argument of the server.
    pub fn argument(mut self, argument: impl Into<String>) -> Config {
        self.arguments.push(argument.into());
        self
    }

    /// Keeps its data in memory if the system has such a file system. Then nothing waits for a disk.
    pub fn in_memory(mut self) -> Config {
        self.memory = true;
        self
    }

    /// Gives its users JWT tokens. A token carries the revision of users and roles, and becomes invalid when
    /// that changes.
    pub fn jwt(mut self) -> Config {
        self.jwt = true;
        self
    }

    /// With [`tls`](Config::tls): requires a client certificate that its own certificate has signed.
    pub fn client_certificates(mut self) -> Config {
        self.client_certificates = true;
        self
    }

    /// Returns the parent of its folder.
    pub(super) fn home(&self) -> PathBuf {
        let memory = Path::new("/dev/shm");
        if self.memory && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
    }

    /// Speaks TLS with its clients. The certificate is in [`Etcd::certificate`](super::Etcd::certificate).
    pub fn tls(mut self) -> Config {
        self.tls = true;
        self
    }

    /// Returns the command for member `name` in a folder; `cluster` is the list of members that it is given.
    pub(super) fn command(&self, name: &str, port: u16, peer: u16, cluster: &str, dir: &Path) -> Command {
        let scheme = if self.tls { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{peer}");
        let mut command = Command::new(ETCD.program("etcd"));
        command.args(["--name", name, "--logger", "zap", "--log-level", "error"]);
        command.arg("--data-dir").arg(dir.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", cluster, "--initial-cluster-state", "new"]);
        command.args(["--heartbeat-interval", &self.heartbeat.to_string()]);
        command.args(["--election-timeout", &(10 * self.heartbeat).to_string()]);
        if self.tls {
            command.arg("--cert-file").arg(dir.join("cert.pem")).arg("--key-file").arg(dir.join("key.pem"));
        }
        if self.client_certificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(dir.join("cert.pem"));
        }
        if self.jwt {
            let key = dir.join("jwt.key");
            std::fs::write(&key, "a secret of this test").expect("the folder takes a file");
            command.arg(format!("--auth-token=jwt,sign-method=HS256,ttl=1h,priv-key={}", key.display()));
        }
        command.args(&self.arguments);
        command
    }
}
