//! A Redis server of one's own, and what it counts.

use super::monitor::{Monitor, count};
use crate::cycle::Counted;
use fencepost_testkit::redis::{Config, Look, Redis};
use redis::Value;
use std::time::Duration;

/// Starts a server that keeps its data in memory alone.
pub(crate) fn start() -> Redis {
    Redis::start(&Config::new()).expect("redis-server, which `cargo xtask test` installs")
}

impl Counted for Redis {
    fn client_url(&self) -> String {
        self.url()
    }

    fn sent(&self, work: impl FnOnce()) -> (f64, String) {
        let monitor = Monitor::of(&self.url());
        work();
        count(&monitor.end())
    }
}

/// Its process id.
pub(crate) fn pid(server: &Redis) -> nix::unistd::Pid {
    let pid = server.pid().expect("a server that runs");
    nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"))
}

/// A connection that asks the server what it has done.
pub(crate) struct Auditor(Look);

/// The server's counters of one command.
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

    /// Sets the server's counters to 0.
    pub(crate) fn reset(&mut self) {
        let _: String = self.0.ask(&["CONFIG", "RESETSTAT"]);
    }

    /// Returns the counters of the scripts that were called by their digest since then.
    pub(crate) fn scripts(&mut self) -> Count {
        let text = self.info("commandstats");
        let figures = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let figure = |key: &str| {
            let value = figures.split(',').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        Count { calls: figure("calls"), usec: figure("usec_per_call") }
    }

    /// How many commands it has executed since then.
    pub(crate) fn commands(&mut self) -> f64 {
        let text = self.info("stats");
        let number = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        number.and_then(|number| number.trim().parse().ok()).unwrap_or(f64::NAN)
    }

    /// How long each command took that is in the log of slow ones.
    pub(crate) fn slow(&mut self) -> Vec<Duration> {
        let log: Vec<Vec<Value>> = self.0.ask(&["SLOWLOG", "GET", "-1"]);
        let micros =
            |entry: &Vec<Value>| if let Some(Value::Int(micros)) = entry.get(2) { *micros } else { 0 };
        log.iter().map(|entry| Duration::from_micros(micros(entry) as u64)).collect()
    }

    /// The addresses of all connections.
    pub(crate) fn clients(&mut self) -> Vec<String> {
        let list: String = self.0.ask(&["CLIENT", "LIST"]);
        list.split(' ').filter_map(|field| field.strip_prefix("addr=").map(str::to_owned)).collect()
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
