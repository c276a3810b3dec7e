//! The promises that the session locks of PostgreSQL and of MySQL share.

/// The lines of an engine. `$session` is the server's part of a connection, `$token` how a token is drawn, `$queue` its floor.
macro_rules! lines {
    ($engine:literal, session: $session:literal, token: $token:literal, left: $left:literal, more: [$($more:expr),* $(,)?]) => {
        &[
            Line {
                id: concat!($engine, "-statements"),
                engine: $engine,
                promise: "statements of an uncontended cycle",
                measure: &[$engine, "statements"],
                bound: AtMost(2.0, "statements"),
                limit: 120,
            },
            Line {
                id: concat!($engine, "-one-task"),
                engine: $engine,
                promise: concat!("lock and release (p50), beside the same statements by hand over a driver, with a token from ", $token),
                measure: &[$engine, "one-task"],
                bound: AtMost(1.25, "× their time"),
                limit: 300,
            },
            Line {
                id: concat!($engine, "-many-tasks"),
                engine: $engine,
                promise: "64 tasks on one connection, beside the same",
                measure: &[$engine, "many-tasks"],
                bound: AtLeast(0.7, "× their rate"),
                limit: 900,
            },
            Line {
                id: concat!($engine, "-handoff-16"),
                engine: $engine,
                promise: "handoffs of 16 tasks in 4 processes in a closed loop, beside 16 connections that wait in the server's queue",
                measure: &[$engine, "handoff", "16"],
                bound: AtLeast(0.4, "× their rate"),
                limit: 200,
            },
            Line {
                id: concat!($engine, "-handoff-128"),
                engine: $engine,
                promise: "the same with 128",
                measure: &[$engine, "handoff", "128"],
                bound: AtLeast(0.4, "× their rate"),
                limit: 200,
            },
            Line {
                id: concat!($engine, "-handoff-1000"),
                engine: $engine,
                promise: "the same with 1,000",
                measure: &[$engine, "handoff", "1000"],
                bound: AtLeast(0.4, "× their rate"),
                limit: 300,
            },
            Line {
                id: concat!($engine, "-steady"),
                engine: $engine,
                promise: "handoffs with 1,000 tasks, beside those with 16",
                measure: &[$engine, "steady"],
                bound: AtLeast(0.5, "× their rate"),
                limit: 400,
            },
            Line {
                id: concat!($engine, "-longest"),
                engine: $engine,
                promise: "the longest wait in such a loop, at worst of 16, 128 and 1,000 tasks",
                measure: &[$engine, "longest"],
                bound: AtMost(2.2, "× the mean"),
                limit: 500,
            },
            Line {
                id: concat!($engine, "-held"),
                engine: $engine,
                promise: "10,000 locks that one process holds and nobody else wants, over a lease",
                measure: &[$engine, "held", "10000"],
                bound: AtMost(2.0, "connections"),
                limit: 600,
            },
            Line {
                id: concat!($engine, "-waiting"),
                engine: $engine,
                promise: "1,000 waiters of one process for a name each: all are granted",
                measure: &[$engine, "waiting", "1000"],
                bound: AtMost(16.0, "connections"),
                limit: 300,
            },
            Line {
                id: concat!($engine, "-backends"),
                engine: $engine,
                promise: concat!("a holder whose ", $session, " is ended knows it"),
                measure: &[$engine, "backends"],
                bound: AtMost(100.0, "ms"),
                limit: 120,
            },
            Line {
                id: concat!($engine, "-clients"),
                engine: $engine,
                promise: "kill -9 of a client that holds a lock and waits for another: those behind it are granted both, and nothing of it is left",
                measure: &[$engine, "clients"],
                bound: AtMost(1.0, "s"),
                limit: 200,
            },
            Line {
                id: concat!($engine, "-stopped"),
                engine: $engine,
                promise: "a process is stopped while 8 of its claims wait: the claim behind them is granted",
                measure: &[$engine, "stopped"],
                bound: AtMost(4.0, "s"),
                limit: 300,
            },
            Line {
                id: concat!($engine, "-partition"),
                engine: $engine,
                promise: "1,000 holders cut off from the server: each calls itself lost before its lock is given away",
                measure: &[$engine, "partition"],
                bound: AtMost(0.0, "holders that still believed"),
                limit: 300,
            },
            Line {
                id: concat!($engine, "-cancelled"),
                engine: $engine,
                promise: concat!("10,000 requests given up at any moment, under load: no ", $left, " is left"),
                measure: &[$engine, "cancelled"],
                bound: AtMost(0.0, "locks"),
                limit: 900,
            },
            Line {
                id: concat!($engine, "-impatient"),
                engine: $engine,
                promise: "20,000 waits of 1 to 5 ms for a busy lock: what they leave at the server",
                measure: &[$engine, "impatient", "20000"],
                bound: AtMost(16.0, "prepared statements, connections and claims"),
                limit: 600,
            },
            Line {
                id: concat!($engine, "-tokens"),
                engine: $engine,
                promise: concat!("kill -9 of the server: tokens grow, from ", $token),
                measure: &[$engine, "tokens"],
                bound: AtMost(0.0, "tokens that do not grow"),
                limit: 600,
            },
            Line {
                id: concat!($engine, "-torture"),
                engine: $engine,
                promise: concat!(
                    "300,000 cycles by 4 processes of 16 tasks on 8 locks under kill -9 of clients and of the server, SIGSTOP, \
                     ends of sessions, and bad networks: histories checked, nothing left. A lock may be granted again when its ",
                    $session,
                    " ends; its holder is told within 500 ms"
                ),
                measure: &[$engine, "torture", "300000", "1"],
                bound: AtMost(0.0, "violations"),
                limit: 5_400,
            },
            $($more),*
        ]
    };
}
pub(super) use lines;
