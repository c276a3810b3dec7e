//! Where the figures were taken: the kind of processor, kernel and packages, and nothing that names the machine.

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
            date: date(
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400),
            ),
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

/// The date of a day since 1970, after Howard Hinnant's `civil_from_days`.
fn date(day: u64) -> String {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(19_782), "2024-02-29");
        assert_eq!(date(20_454), "2026-01-01");
    }

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(version("tokio").is_some_and(|found| found.starts_with("tokio 1.")));
        assert_eq!(version("no such package"), None);
    }
}
