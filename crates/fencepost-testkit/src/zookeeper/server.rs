//! One ZooKeeper server.

use super::config::{Config, secure_port, server_path};
use super::look::serves;
use crate::faults::{Fault, Faults};
use crate::server::{Plan, Server, certify_for, process_faults};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running server without peers.
pub struct ZooKeeper {
    server: Server,
    /// The address on which it speaks TLS.
    secure: Option<SocketAddr>,
}

impl ZooKeeper {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// Returns an error with the end of its log if it does not start.
    pub fn start(config: &Config) -> io::Result<ZooKeeper> {
        let (own, tls) = (config.clone(), config.tls.is_some());
        let mut plan = Plan::new("zookeeper", move |port, dir| {
            command(&own, port, dir).unwrap_or_else(|error| panic!("no folder for ZooKeeper: {error}"))
        });
        plan.ready = Box::new(move |port, dir| {
            let listens = || secure_port(port, dir).and_then(|port| TcpStream::connect(("127.0.0.1", port)));
            serves(local(port)) && (!tls || listens().is_ok())
        });
        plan.patience = Duration::from_secs(60);
        let server = Server::start(plan)?;
        let secure = tls.then(|| secure_port(server.port(), server.dir())).transpose()?.map(local);
        Ok(ZooKeeper { server, secure })
    }

    /// Returns its address without TLS.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the address to which its clients connect: with TLS, if it has that.
    pub fn entrance(&self) -> SocketAddr {
        self.secure.unwrap_or_else(|| self.address())
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
        certify_both(self.server.dir(), "IP:127.0.0.1,DNS:localhost")
    }

    /// Returns its URL: `zookeeper://127.0.0.1:PORT`, or with TLS `zookeepers://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.url_at(self.entrance())
    }

    /// Returns its URL with another address, such as a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("{}://{address}", if self.secure.is_some() { "zookeepers" } else { "zookeeper" })
    }

    /// Returns its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Restarts it with other counts of children at some paths. A count includes deleted children, and is the number of the next
    /// sequential child.
    ///
    /// # Errors
    /// Returns an error with the reason if the server's data cannot be changed.
    pub fn set_counts(&mut self, counts: &[(&str, i32)]) -> Result<(), Fault> {
        self.kill()?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/zookeeper/SetCount.java");
        let data = self.server.dir().join("data");
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]);
        command.args(["-cp", &server_path(), source]).arg(data);
        for (path, count) in counts {
            command.args([path, count.to_string().as_str()]);
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()).into());
        }
        self.restart()
    }

    /// Returns the end of its log.
    pub fn log(&self) -> String {
        self.server.log()
    }
}

fn command(config: &Config, port: u16, dir: &Path) -> io::Result<Command> {
    if let Some(tls) = &config.tls
        && !dir.join("both.pem").exists()
    {
        certify_both(dir, tls.names)?;
    }
    let file = dir.join("zoo.cfg");
    std::fs::write(&file, config.file(port, dir, &[]))?;
    Ok(config.command("org.apache.zookeeper.server.ZooKeeperServerMain", &file))
}

/// Makes a certificate and its key, each in a file and both in one.
fn certify_both(dir: &Path, names: &str) -> io::Result<()> {
    certify_for(dir, names)?;
    let both = [std::fs::read(dir.join("key.pem"))?, std::fs::read(dir.join("cert.pem"))?].concat();
    std::fs::write(dir.join("both.pem"), both)
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Faults for ZooKeeper {
    process_faults!();
}
