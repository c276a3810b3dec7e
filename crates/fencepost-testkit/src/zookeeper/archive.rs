//! An archive of the classes that a server loads. With it a Java machine starts in two thirds of the processor time.

use super::config::{Config, server_path};
use super::look::serves;
use crate::server::{Plan, Server};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

/// Returns the archive's file, which is beside the test program. `None`: it cannot be made here, and servers start without it.
///
/// A Java machine ignores the archive of another one, or of jars that have changed.
pub(super) fn archive() -> Option<&'static Path> {
    static ARCHIVE: LazyLock<Option<PathBuf>> = LazyLock::new(|| make().ok());
    ARCHIVE.as_deref()
}

/// Has a server that runs write down its classes, unless an earlier test program has done so.
fn make() -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    server_path().hash(&mut hasher);
    let name = format!("fencepost-zookeeper-{:016x}.jsa", hasher.finish());
    let file = std::env::current_exe()?.with_file_name(name);
    if file.exists() {
        return Ok(file);
    }
    let mut plan = Plan::new("zookeeper", |port, dir| {
        let config = Config::new();
        let file = dir.join("zoo.cfg");
        std::fs::write(&file, config.file(port, dir, &[])).expect("the server's folder can be written");
        let mut command = config.machine();
        command.arg("-XX:+RecordDynamicDumpInfo").args(["-cp", &server_path()]);
        command.arg("org.apache.zookeeper.server.ZooKeeperServerMain").arg(file);
        command
    });
    plan.ready = Box::new(|port, _| serves(SocketAddr::from(([127, 0, 0, 1], port))));
    plan.patience = Duration::from_secs(60);
    let server = Server::start(plan)?;
    // Two test programs may do this at once, so each writes a file of its own, and a rename is atomic.
    let part = file.with_extension(server.dir().file_name().unwrap_or_default());
    let pid = server.pid().unwrap_or_default().to_string();
    let mut dump = Command::new("timeout");
    dump.args(["60", "jcmd", &pid, "VM.cds", "dynamic_dump"]).arg(&part).output()?;
    // It ends with 0 after some errors, too. Then there is no file to be renamed.
    std::fs::rename(&part, &file)?;
    Ok(file)
}
