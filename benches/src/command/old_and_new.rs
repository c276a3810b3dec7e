//! The command of an older version beside today's, on one engine: they exclude each other.

use super::{Place, Wrapper};
use crate::figure::Measured;
use fencepost_testkit::{etcd, redis, zookeeper};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs of each version at once. ZooKeeper takes 60 connections of one host by default.
const AT_ONCE: usize = 20;
const ROUNDS: usize = 5;
/// Makes and removes a folder, which fails beside another run. Reads, sleeps and writes: without the lock, counts get lost.
const SCRIPT: &str = r#"mkdir "$0.held" || echo beside >>"$0.log"; n=$(cat "$0"); sleep 0.01; echo $((n + 1)) >"$0"; rmdir "$0.held""#;

/// Counts what went wrong.
pub(crate) fn runs(engine: &str) -> Measured {
    let place = Place::new("old-and-new");
    match engine {
        "sqlite" => beside(&place, &place.url()),
        "redis" => {
            let server = redis::Redis::start(&redis::Config::new()).expect("redis-server");
            beside(&place, &server.url())
        }
        "zookeeper" => {
            let server = zookeeper::ZooKeeper::start(&zookeeper::Config::new()).expect("ZooKeeper");
            beside(&place, &server.url())
        }
        "etcd" => {
            let server = etcd::Etcd::start(&etcd::Config::new()).expect("etcd");
            beside(&place, &server.url())
        }
        other => panic!("no such engine: {other}"),
    }
}

fn beside(place: &Place, url: &str) -> Measured {
    let old = std::env::var_os("FENCEPOST_OLD").map(PathBuf::from);
    let old = old.expect("FENCEPOST_OLD, the older command, which `cargo xtask prove` builds");
    let new = std::env::current_exe().expect("the path of this program").with_file_name("fencepost");
    let counter = place.file("counter");
    std::fs::write(&counter, "0\n").expect("the counter file");
    let start = |program: &Path| {
        let mut command = Command::new(program);
        command.args(["run", "-w", "60s", "counter", "--", "sh", "-c", SCRIPT]).arg(&counter);
        command.env("FENCEPOST_BACKEND", url).stdin(Stdio::null()).stderr(Stdio::null());
        Wrapper::start(command)
    };
    let mut failed = 0;
    for _ in 0..ROUNDS {
        let mut runs: Vec<_> = (0..AT_ONCE).flat_map(|_| [start(&old), start(&new)]).collect();
        failed += runs.iter_mut().map(Wrapper::wait).filter(|code| *code != 0).count();
    }
    let wanted = 2 * AT_ONCE * ROUNDS;
    let count = std::fs::read_to_string(&counter).unwrap_or_default().trim().parse().unwrap_or(0);
    let lost = wanted.abs_diff(count);
    let log = std::fs::read_to_string(place.file("counter.log")).unwrap_or_default();
    let overlaps = log.lines().count();
    let note = format!(
        "{wanted} runs, half of each version, {} at once: {failed} failed, {lost} counts lost, {overlaps} overlaps",
        2 * AT_ONCE
    );
    Measured { figure: (failed + lost + overlaps) as f64, note }
}
