//! A Redis server of one's own, and what it counts.

use fencepost_testkit::redis::{Config, Look, Redis};
use std::collections::BTreeMap;

/// What only scripts call; everything else that is counted was sent by a client.
const INNER: [&str; 24] = [
    "time",
    "publish",
    "spublish",
    "exists",
    "pexpire",
    "pexpireat",
    "persist",
    "pttl",
    "hget",
    "hmget",
    "hset",
    "hsetnx",
    "hdel",
    "hgetall",
    "hexists",
    "hlen",
    "hscan",
    "hkeys",
    "hvals",
    "hincrby",
    "hstrlen",
    "get",
    "set",
    "del",
];
/// What the measurement itself sends.
const OWN: [&str; 2] = ["info", "config"];

/// Starts a server that keeps its data in memory alone.
pub(crate) fn start() -> Redis {
    Redis::start(&Config::new()).expect("redis-server, which `cargo xtask test` installs")
}

/// Its process id.
pub(crate) fn pid(server: &Redis) -> nix::unistd::Pid {
    let pid = server.pid().expect("a server that runs");
    nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"))
}

/// A connection that asks the server what it has done.
pub(crate) struct Auditor(Look);

/// What the server has counted of one command.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    /// How often it was called.
    pub(crate) calls: f64,
    /// Server time of a call in µs.
    pub(crate) usec: f64,
}

impl Auditor {
    /// Connects to the server.
    pub(crate) fn of(server: &Redis) -> Auditor {
        Auditor(server.look())
    }

    /// Lets the server count anew.
    pub(crate) fn reset(&mut self) {
        let _: String = self.0.ask(&["CONFIG", "RESETSTAT"]);
    }

    /// All commands since the last reset, inner ones of scripts too.
    fn counts(&mut self) -> BTreeMap<String, Count> {
        let text = self.info("commandstats");
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        lines
            .map(|(name, figures)| {
                let figure = |key: &str| {
                    let value =
                        figures.split(',').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
                    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
                };
                (name.to_owned(), Count { calls: figure("calls"), usec: figure("usec_per_call") })
            })
            .collect()
    }

    /// How many commands clients have sent since the last reset, and which.
    pub(crate) fn sent(&mut self) -> (f64, String) {
        let mut counts = self.counts();
        counts.retain(|name, _| {
            !INNER.contains(&name.as_str()) && !OWN.iter().any(|own| name.starts_with(own))
        });
        let shown: Vec<String> =
            counts.iter().map(|(name, count)| format!("{} {name}", count.calls)).collect();
        (counts.values().map(|count| count.calls).sum(), shown.join(", "))
    }

    /// What it has counted of the scripts that were called by their digest.
    pub(crate) fn scripts(&mut self) -> Count {
        self.counts().get("evalsha").copied().unwrap_or_default()
    }

    /// How many clients stand in a blocking command.
    pub(crate) fn blocked(&mut self) -> usize {
        let text = self.info("clients");
        let line = text.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    fn info(&mut self, section: &str) -> String {
        self.0.ask(&["INFO", section])
    }
}
