//! The configuration of a server.

use super::archive::archive;
use crate::needs::ZOOKEEPER;
use crate::server::free_port;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The folder of the jars of Debian's packages.
const JARS: &str = "/usr/share/java";

/// The jars that a server needs beside its own, whose manifest names most of them.
const SERVER: [&str; 6] =
    ["zookeeper", "slf4j-simple", "snappy-java", "netty-all", "netty-codec", "metrics-core"];

/// Returns the class path of the server.
pub(super) fn server_path() -> String {
    ZOOKEEPER.folder().map_or_else(|| class_path(&SERVER), |folder| format!("{}/*", folder.display()))
}

/// Makes a class path of the system's jars with these names.
pub fn class_path(jars: &[&str]) -> String {
    jars.iter().map(|jar| format!("{JARS}/{jar}.jar")).collect::<Vec<_>>().join(":")
}

/// Returns the TLS port of the server on `port`. A restart on the same `port` keeps it.
pub(super) fn secure_port(port: u16, dir: &Path) -> io::Result<u16> {
    let file = dir.join("secure-port");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    if let Some((_, secure)) = text.split_once(' ').filter(|(plain, _)| *plain == port.to_string()) {
        return secure.parse().map_err(io::Error::other);
    }
    let secure = free_port()?;
    std::fs::write(file, format!("{port} {secure}"))?;
    Ok(secure)
}

/// The configuration of a server. By default it ticks every 100 ms, so that a session may be as short as 200
/// ms, and does not sync the disk.
#[derive(Debug, Clone)]
pub struct Config {
    tick: Duration,
    synced: bool,
    fast: bool,
    pub(super) tls: Option<Tls>,
    lines: Vec<String>,
}

/// How a server speaks TLS.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    /// The names in its certificate.
    pub(super) names: &'static str,
    /// Whether it requires client certificates.
    pub(super) mutual: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { tick: Duration::from_millis(100), synced: false, fast: false, tls: None, lines: Vec::new() }
    }
}

impl Config {
    /// Returns the default.
    pub fn new() -> Config {
        Config::default()
    }

    /// Sets the server's tick. A session lasts at least two ticks, and its end is rounded up to a tick.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Config {
        self.tick = tick;
        self
    }

    /// Syncs the disk before each reply. Without that, a killed server still restarts with every reply that
    /// it gave; after a crash of the machine it does not.
    #[must_use]
    pub fn synced(mut self) -> Config {
        self.synced = true;
        self
    }

    /// For measurements: starts more slowly, and runs as a production server does.
    #[must_use]
    pub fn fast(mut self) -> Config {
        self.fast = true;
        self
    }

    /// Speaks TLS on a second port. The certificate is in
    /// [`ZooKeeper::certificate`](super::ZooKeeper::certificate).
    #[must_use]
    pub fn tls(self) -> Config {
        self.tls_for("IP:127.0.0.1,DNS:localhost")
    }

    /// Speaks TLS with a certificate for other names, in the form of the certificate: `DNS:host` or
    /// `IP:address`.
    #[must_use]
    pub fn tls_for(mut self, names: &'static str) -> Config {
        self.tls = Some(Tls { names, mutual: false });
        self
    }

    /// Speaks TLS, and requires a client certificate: its own certificate and key.
    #[must_use]
    pub fn mutual_tls(mut self) -> Config {
        self = self.tls();
        self.tls.iter_mut().for_each(|tls| tls.mutual = true);
        self
    }

    /// Adds a line to the configuration file.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Config {
        self.lines.push(line.into());
        self
    }

    /// Returns the configuration file of the server on `port`; `members` are the lines of an ensemble.
    pub(super) fn file(&self, port: u16, dir: &Path, members: &[String]) -> String {
        let mut lines = vec![
            format!("tickTime={}", self.tick.as_millis()),
            format!("dataDir={}", dir.join("data").display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".to_owned(),
            "admin.enableServer=false".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "maxSessionTimeout=60000".to_owned(),
            "initLimit=100".to_owned(),
            "syncLimit=10".to_owned(),
            // There is only the loopback interface. An ensemble that checks interfaces would wait for others.
            "multiAddress.reachabilityCheckEnabled=false".to_owned(),
        ];
        if let Some(tls) = &self.tls {
            let (shown, auth) = (dir.display(), if tls.mutual { "need" } else { "none" });
            lines.extend([
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
                format!("secureClientPort={}", secure_port(port, dir).expect("a free port")),
                "secureClientPortAddress=127.0.0.1".to_owned(),
                format!("ssl.keyStore.location={shown}/both.pem\nssl.keyStore.type=PEM"),
                format!("ssl.trustStore.location={shown}/cert.pem\nssl.trustStore.type=PEM"),
                format!("ssl.clientAuth={auth}\nssl.hostnameVerification=false"),
            ]);
        }
        lines.extend_from_slice(members);
        lines.extend_from_slice(&self.lines);
        lines.join("\n") + "\n"
    }

    /// Returns the command that runs `class` on a configuration file.
    pub(super) fn command(&self, class: &str, file: &Path) -> Command {
        let mut command = self.machine();
        if let Some(archive) = archive().filter(|_| !self.fast) {
            command.arg(format!("-XX:SharedArchiveFile={}", archive.display()));
        }
        command.args(["-cp", &server_path(), class]).arg(file);
        command
    }

    /// Returns the command of a Java machine with the options of a server.
    pub(super) fn machine(&self) -> Command {
        let mut command = Command::new("java");
        if self.fast {
            command.args(["-Xmx512m"]);
        } else {
            command.args(["-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        }
        command.args([
            "-XX:+UseSerialGC",
            "-Xshare:auto",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.preAllocSize=1024",
            "-Dzookeeper.skipACL=no",
            "-Dzookeeper.extendedTypesEnabled=true",
            // How often the server removes empty containers.
            "-Dznode.container.checkIntervalMs=1000",
        ]);
        if !self.synced {
            command.arg("-Dzookeeper.forceSync=no");
        }
        command
    }
}
