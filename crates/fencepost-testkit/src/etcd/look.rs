//! What an operator does by `etcdctl`.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// An operator of one or several members, who needs no network that could be cut.
#[derive(Debug, Clone)]
pub struct Look {
    endpoints: String,
    certificate: Option<PathBuf>,
    user: Option<String>,
}

impl Look {
    pub(super) fn at(endpoints: String, certificate: Option<PathBuf>) -> Look {
        Look { endpoints, certificate, user: None }
    }

    /// The same as this user, `name:password`.
    pub fn of(mut self, user: &str) -> Look {
        self.user = Some(user.to_owned());
        self
    }

    /// An `etcdctl` with these arguments, for tests that start or kill it themselves.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints]).stdin(Stdio::null());
        if let Some(certificate) = &self.certificate {
            command.arg("--cacert").arg(certificate);
            command.arg("--cert").arg(certificate).arg("--key").arg(certificate.with_file_name("key.pem"));
        }
        if let Some(user) = &self.user {
            command.env("ETCDCTL_USER", user);
        }
        command.args(arguments);
        command
    }

    /// What it prints.
    ///
    /// # Errors
    /// It fails; the error holds what it says.
    pub fn try_run(&self, arguments: &[&str]) -> io::Result<String> {
        let output = self.command(arguments).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("etcdctl {arguments:?}: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What it prints.
    ///
    /// # Panics
    /// It fails.
    pub fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).expect("etcdctl does it")
    }

    /// All keys that begin so; empty text: all there are.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = self.run(&["get", prefix, "--prefix", "--keys-only"]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// All leases, in hex.
    pub fn leases(&self) -> Vec<String> {
        // The first line says how many there are.
        self.run(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }
}
