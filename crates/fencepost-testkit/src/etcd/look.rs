//! An operator's commands, through `etcdctl`.

use super::server::http;
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a member may be silent. `etcdctl` itself gives up after 5 s, and after 2 s if it logs in.
const PATIENCE: Duration = Duration::from_secs(30);

/// An operator of one or several members. It does not use the network that a test can cut.
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

    /// Uses this user, `name:password`.
    pub fn of(mut self, user: &str) -> Look {
        self.user = Some(user.to_owned());
        self
    }

    /// Returns an `etcdctl` with these arguments, for a test that starts or kills it itself.
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

    /// Runs `etcdctl` and returns its output. It has 30 s (`PATIENCE`), unless an argument says otherwise.
    ///
    /// # Errors
    /// Returns an error with its output if it fails.
    pub fn try_run(&self, arguments: &[&str]) -> io::Result<String> {
        let seconds = PATIENCE.as_secs();
        // The second one is also the limit of a login.
        let limits = [format!("--command-timeout={seconds}s"), format!("--dial-timeout={seconds}s")];
        let output = self.command(&[&limits.each_ref().map(String::as_str), arguments].concat()).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("etcdctl {arguments:?}: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `etcdctl` and returns its output.
    ///
    /// # Panics
    /// Panics if it fails.
    pub fn run(&self, arguments: &[&str]) -> String {
        let start = Instant::now();
        loop {
            match self.try_run(arguments) {
                // A busy machine holds up leaders, and `etcdctl` does not repeat a write when another one is elected.
                Err(error) if error.to_string().contains("leader") && start.elapsed() < PATIENCE => {}
                done => return done.expect("etcdctl does it"),
            }
        }
    }

    /// Returns all keys with this prefix. An empty prefix means all keys.
    ///
    /// # Panics
    /// Panics if no member answers.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let plain = self.endpoints.strip_prefix("http://").filter(|host| !host.contains(','));
        // Tests ask this most often, and a request costs a tenth of the start of `etcdctl`.
        if let (Some(host), None) = (plain, &self.user) {
            return keys(host, prefix).expect("the member answers");
        }
        let text = self.run(&["get", prefix, "--prefix", "--keys-only"]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the ids of all leases, in hex.
    pub fn leases(&self) -> Vec<String> {
        // The first line is the number of leases.
        self.run(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }
}

/// Asks a member by etcd's gateway for JSON.
fn keys(host: &str, prefix: &str) -> io::Result<Vec<String>> {
    let first = if prefix.is_empty() { b"\0" } else { prefix.as_bytes() };
    // The first key behind the prefix. A zero byte means that there is none.
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    let (first, end) = (BASE64_STANDARD.encode(first), BASE64_STANDARD.encode(end));
    let body = json!({ "key": first, "range_end": end, "keys_only": true }).to_string();
    let head = format!("POST /v3/kv/range HTTP/1.0\r\nContent-Length: {}", body.len());
    let answer = http(host, &format!("{head}\r\n\r\n{body}"), PATIENCE)?;
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let answer: Value = serde_json::from_str(answer)?;
    if answer.get("header").is_none() {
        return Err(io::Error::other(answer.to_string()));
    }
    let found = answer["kvs"].as_array().into_iter().flatten();
    let found = found.map(|entry| BASE64_STANDARD.decode(entry["key"].as_str().unwrap_or_default()));
    let found = found.map(|key| Ok(String::from_utf8_lossy(&key.map_err(io::Error::other)?).into_owned()));
    found.collect()
}
