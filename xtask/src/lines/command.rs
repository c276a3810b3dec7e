//! The promises of the command.

use crate::line::Bound::AtMost;
use crate::line::Line;

/// The line about firings on an engine.
macro_rules! once {
    ($engine:literal) => {
        Line {
            id: concat!("command-once-", $engine),
            engine: "command",
            promise: concat!(
                "5 processes, one of them 10 ms further from the server, start each of 1,000 firings within 0.4 s (`--once-per 10s`), and of \
                 10 with longer windows; of every ten runs one wrapper and one guardian are killed: each firing runs once, with `--retry` \
                 again after a kill, all others exit with 0, and `check` is good; on ",
                $engine
            ),
            measure: &["command-once", $engine, "1000"],
            bound: AtMost(0.0, "violations"),
            limit: 1200,
        }
    };
}

pub(super) const LINES: &[Line] = &[
    Line {
        id: "command-killed",
        engine: "command",
        promise: "kill -9 of a wrapper, 1,000 times: child and grandchild are gone and the next waiter runs within 1 s, tokens grow",
        measure: &["command-killed"],
        bound: AtMost(0.0, "violations"),
        limit: 900,
    },
    Line {
        id: "command-frozen",
        engine: "command",
        promise: "SIGSTOP of a wrapper for longer than its lease, 60 times: child and grandchild are dead before the next holder's start",
        measure: &["command-frozen"],
        bound: AtMost(0.0, "violations"),
        limit: 300,
    },
    Line {
        id: "command-paused",
        engine: "command",
        promise: "a pause past the lease between the grant and the start of the program, 60 times: nothing is run, exit code 76",
        measure: &["command-paused"],
        bound: AtMost(0.0, "violations"),
        limit: 300,
    },
    Line {
        id: "command-crowd",
        engine: "command",
        promise: "200 concurrent `fencepost run -w 60s` on a counter file, 5 times: exact count, tokens strictly grow, the line is kept, nothing is left",
        measure: &["command-crowd"],
        bound: AtMost(0.0, "violations"),
        limit: 900,
    },
    Line {
        id: "command-cost-sqlite",
        engine: "command",
        promise: "`fencepost run` beside the program itself, on a SQLite file that is there (medians of 100)",
        measure: &["command-cost", "sqlite"],
        bound: AtMost(10.0, "ms more"),
        limit: 120,
    },
    Line {
        id: "command-cost-redis",
        engine: "command",
        promise: "the same on a Redis server that is up",
        measure: &["command-cost", "redis"],
        bound: AtMost(10.0, "ms more"),
        limit: 120,
    },
    once!("sqlite"),
    once!("redis"),
    once!("postgres"),
    once!("postgres-table"),
    once!("mariadb"),
    once!("etcd"),
    once!("zookeeper"),
    Line {
        id: "command-retry",
        engine: "command",
        promise: "two hosts start a firing with `--retry` on Redis, 0.45 s apart, one of them 10 ms further from the server in each direction: the job of 0.6 s runs once, 100 times",
        measure: &["command-retry", "100"],
        bound: AtMost(0.0, "violations"),
        limit: 300,
    },
];
