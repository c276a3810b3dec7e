//! One etcd server.

use super::{Config, Look};
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Server, certify, free_port, process_faults};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a server may be silent that is asked whether it is ready. It is asked again.
const READY_LIMIT: Duration = Duration::from_secs(2);
/// How long a busy server may be silent that is asked for its counts.
const COUNTS_LIMIT: Duration = Duration::from_secs(30);

/// A running `etcd` with one member.
pub struct Etcd {
    server: Server,
    tls: bool,
}

impl Etcd {
    /// Starts a server and waits until it accepts writes.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start(config: &Config) -> io::Result<Etcd> {
        let own = config.clone();
        let mut plan = Plan::new("etcd", move |port, dir| {
            command(&own, port, dir).unwrap_or_else(|error| panic!("no folder for etcd: {error}"))
        });
        plan.home = config.home();
        if config.tls {
            plan.ready = Box::new(|port, dir| {
                let look = Look::at(format!("https://127.0.0.1:{port}"), Some(dir.join("cert.pem")));
                look.try_run(&["--command-timeout=5s", "endpoint", "health"]).is_ok()
            });
        } else {
            plan.ready = Box::new(|port, _| is_healthy(port));
        }
        Ok(Etcd { server: Server::start(plan)?, tls: config.tls })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns its URL with another address, such as a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("{}://{address}", if self.tls { "etcds" } else { "etcd" })
    }

    /// Returns the certificate of a server with [`Config::tls`], which is also its authority.
    pub fn certificate(&self) -> PathBuf {
        self.server.dir().join("cert.pem")
    }

    /// Makes another certificate and key, which are in use after the next start. The server must have TLS.
    ///
    /// # Errors
    /// Returns an error if there is no `openssl`.
    pub fn rotate(&self) -> io::Result<()> {
        certify(self.server.dir())
    }

    /// Returns the number of its clients' requests and streams since its start, by method.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub fn requests(&self) -> io::Result<BTreeMap<String, u64>> {
        let text = get(self.address().port(), "/metrics", COUNTS_LIMIT)?;
        let lines = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("grpc_server_started_total{")?;
            let (labels, count) = rest.split_once("} ")?;
            let (_, method) = labels.split_once("grpc_method=\"")?;
            Some((method.split('"').next()?.to_owned(), count.parse::<f64>().ok()? as u64))
        });
        Ok(lines.collect())
    }

    /// Returns the number of watches at the server.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub fn watches(&self) -> io::Result<u64> {
        let text = get(self.address().port(), "/metrics", COUNTS_LIMIT)?;
        let count = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
        let count = count.and_then(|count| count.parse::<f64>().ok());
        count.map(|count| count as u64).ok_or_else(|| io::Error::other("it counts no watches"))
    }

    /// Returns an operator's tool.
    pub fn look(&self) -> Look {
        let scheme = if self.tls { "https" } else { "http" };
        let certificate = self.tls.then(|| self.certificate());
        Look::at(format!("{scheme}://{}", self.address()), certificate)
    }
}

fn command(config: &Config, port: u16, dir: &Path) -> io::Result<Command> {
    if config.tls && !dir.join("cert.pem").exists() {
        certify(dir)?;
    }
    let peer = free_port()?;
    Ok(config.command("one", port, peer, &format!("one=http://127.0.0.1:{peer}"), dir))
}

/// Whether the member has a leader and accepts writes.
pub(super) fn is_healthy(port: u16) -> bool {
    get(port, "/health", READY_LIMIT).is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}

/// Requests `path` over HTTP, and returns the reply. `limit`: how long the server may be silent.
fn get(port: u16, path: &str, limit: Duration) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    http(&format!("127.0.0.1:{port}"), &request, limit)
}

/// Sends a request, and returns the reply. `limit`: how long the server may be silent.
pub(super) fn http(host: &str, request: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Faults for Etcd {
    process_faults!();
}
