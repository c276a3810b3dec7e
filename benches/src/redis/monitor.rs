//! The commands that clients send, as the server's MONITOR shows them.

use redis::{Connection, from_redis_value};
use std::collections::BTreeMap;
use std::thread::JoinHandle;

/// The key whose command ends the monitoring.
const OVER: &str = "over";
/// The commands of the measurement itself.
const OWN: [&str; 2] = ["INFO", "CONFIG"];

/// A command of a client.
pub(crate) struct Sent {
    /// By the server's clock, in s.
    pub(super) at: f64,
    /// Its connection's.
    pub(super) address: String,
    command: String,
}

/// Writes down all commands of clients until its end, without those that scripts call.
pub(crate) struct Monitor {
    other: Connection,
    seen: JoinHandle<Vec<Sent>>,
}

impl Monitor {
    pub(crate) fn of(url: &str) -> Monitor {
        let client = redis::Client::open(url).expect("a good URL");
        let connect = || client.get_connection().expect("a server that answers");
        let (mut monitor, other) = (connect(), connect());
        monitor.send_packed_command(&redis::cmd("MONITOR").get_packed_command()).expect("it is sent");
        monitor.recv_response().expect("a server that shows its commands");
        Monitor { other, seen: std::thread::spawn(move || watch(monitor)) }
    }

    /// All commands up to now.
    pub(crate) fn end(mut self) -> Vec<Sent> {
        redis::cmd("ECHO").arg(OVER).exec(&mut self.other).expect("a server that answers");
        self.seen.join().expect("a thread that does not panic")
    }
}

fn watch(mut monitor: Connection) -> Vec<Sent> {
    let mut seen = Vec::new();
    loop {
        let line: String = from_redis_value(monitor.recv_response().expect("a line")).expect("a text");
        // 1763740800.123456 [0 127.0.0.1:40000] "EVALSHA" …, or [0 lua] for what a script calls.
        let (time, rest) = line.split_once(" [0 ").expect("a time");
        let (address, words) = rest.split_once("] ").expect("an address");
        let mut words = words.split('"').skip(1).step_by(2);
        let command = words.next().expect("a command").to_uppercase();
        match (address, &*command) {
            ("lua", _) => {}
            (_, "ECHO") if words.next() == Some(OVER) => return seen,
            (_, own) if OWN.contains(&own) => {}
            _ => seen.push(Sent { at: time.parse().expect("seconds"), address: address.to_owned(), command }),
        }
    }
}

/// How many there are, and which.
pub(crate) fn count(sent: &[Sent]) -> (f64, String) {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    sent.iter().for_each(|sent| *counts.entry(&sent.command).or_default() += 1);
    let shown: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    (sent.len() as f64, shown.join(", "))
}
