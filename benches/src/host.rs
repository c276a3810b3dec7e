//! Where the figures were taken: the kind of processor, kernel and packages, and nothing that names the machine.

use fencepost_check::utc;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The lock file that this program was built with.
const LOCK: &str = include_str!("../../Cargo.lock");

/// The output of `fencepost-bench host`.
#[derive(Serialize)]
pub(crate) struct Host {
    cpu: String,
    cores: usize,
    kernel: String,
    date: String,
    versions: Vec<String>,
}

impl Host {
    /// Reads it from the system.
    pub(crate) fn read() -> Host {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
        // Only the class of the kernel: its own suffix may name a machine or a provider.
        let kernel = kernel.unwrap_or_default().split('.').take(2).collect::<Vec<_>>().join(".");
        Host {
            cpu: cpu.map_or_else(|| "an unknown processor".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {kernel}"),
            date: utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())[..10].to_owned(),
            versions: ["fencepost-core", "tokio", "async-lock", "rusqlite", "redis"]
                .into_iter()
                .filter_map(version)
                .collect(),
        }
    }
}

/// Returns a package of the lock file with its version.
pub(crate) fn version(package: &str) -> Option<String> {
    let (_, rest) = LOCK.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    Some(format!("{} {}", package.trim_end_matches("-core"), rest.split('"').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(version("tokio").is_some_and(|found| found.starts_with("tokio 1.")));
        assert_eq!(version("no such package"), None);
    }
}
