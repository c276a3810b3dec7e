//! The promises of the lock service.

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;

/// The line about the cost in front of an engine.
macro_rules! cost {
    ($engine:literal) => {
        Line {
            id: concat!("server-cost-", $engine),
            engine: "server",
            promise: concat!(
                "acquire and release through the service on ",
                $engine,
                " (p50), less the engine's own cycle, beside two requests to a bare echo of axum"
            ),
            measure: &["server", "cost", $engine],
            bound: AtMost(1.25, "× their time"),
            limit: 120,
        }
    };
}

pub(super) const LINES: &[Line] = &[
    cost!("memory"),
    cost!("sqlite"),
    cost!("redis"),
    Line {
        id: "server-together",
        engine: "server",
        promise: "64 callers acquire and release on the engine in memory: requests a second, beside those of the echo",
        measure: &["server", "together"],
        bound: AtLeast(0.5, "× its rate"),
        limit: 120,
    },
    Line {
        id: "server-waiting-memory",
        engine: "server",
        promise: "10,000 callers that wait for a lock on Redis: memory of each",
        measure: &["server", "waiting-memory", "10000"],
        bound: AtMost(20.0, "KiB"),
        limit: 120,
    },
    Line {
        id: "server-waiting-commands",
        engine: "server",
        promise: "the same: commands at the engine until all wait and for 10 s more, beside 10,000 waiters of the library",
        measure: &["server", "waiting-commands", "10000"],
        bound: AtMost(1.01, "× their commands"),
        limit: 180,
    },
    Line {
        id: "server-peers",
        engine: "server",
        promise: "ahead of OctoStore, alone, with 64 callers, and in handoffs of 16 waiters; ours on SQLite",
        measure: &["server", "octostore-peers"],
        bound: AtMost(0.0, "figures in which it is ahead"),
        limit: 1_800,
    },
    Line {
        id: "server-told",
        engine: "server",
        promise: "1,000 clients with a lease of 2 s that are stopped, cut off, silent or slow: each knows of its loss when the next is granted, \
                  and tokens grow",
        measure: &["server", "told", "1000"],
        bound: AtMost(0.0, "violations"),
        limit: 300,
    },
    Line {
        id: "server-hung-up",
        engine: "server",
        promise: "500 callers hang up while they wait: the longest time until the caller has left the queue",
        measure: &["server", "hung-up", "500"],
        bound: AtMost(100.0, "ms"),
        limit: 180,
    },
    Line {
        id: "server-garbled",
        engine: "server",
        promise: "1,000,000 random requests, some of them cut off or garbled: no panic, no status 500, no growth of memory",
        measure: &["server", "garbled", "1000000"],
        bound: AtMost(0.0, "violations"),
        limit: 1_200,
    },
    Line {
        id: "server-timing",
        engine: "server",
        promise: "the refusal of an access token takes as long if one of its characters is wrong as if all are (Welch's t-test)",
        measure: &["server", "timing", "400000"],
        bound: AtMost(4.5, "(t)"),
        limit: 300,
    },
    Line {
        id: "server-openapi",
        engine: "server",
        promise: "Schemathesis makes requests from the OpenAPI document: each answer is as the document says; a request that it allows may still break a rule that JSON Schema cannot say",
        measure: &["server", "openapi", "100"],
        bound: AtMost(0.0, "findings"),
        limit: 1_200,
    },
    Line {
        id: "server-torture",
        engine: "server",
        promise: "cycles by 4 processes × 16 tasks on 8 locks through 3 copies before one Redis, under kill -9 and SIGSTOP of copies and clients, \
                  cut and delayed networks: no overlap, tokens grow, nothing is left",
        measure: &["server", "torture", "100000", "7"],
        bound: AtMost(0.0, "findings"),
        limit: 3_600,
    },
];
