//! The bar, line by line. An engine that is added appends its lines here.

mod command;
mod etcd;
mod mysql;
mod old_and_new;
mod postgres;
mod primitives;
mod secrets;
mod sql;
mod table;
mod zookeeper;

use crate::line::Bound::{AtLeast, AtMost};
use crate::line::Line;
use std::sync::LazyLock;

/// Every line, those of one engine together.
pub(crate) static LINES: LazyLock<Vec<&'static Line>> = LazyLock::new(|| {
    secrets::LINES
        .iter()
        .chain(FIRST)
        .chain(primitives::LINES)
        .chain(command::LINES)
        .chain(old_and_new::LINES)
        .chain(zookeeper::LINES)
        .chain(etcd::LINES)
        .chain(postgres::LINES)
        .chain(table::POSTGRES)
        .chain(mysql::LINES)
        .chain(table::MYSQL)
        .collect()
});

/// Those that have no file of their own.
const FIRST: &[Line] = &[
    Line {
        id: "core-simulation",
        engine: "core",
        promise: "a minute of simulation on fresh seeds, with lost, late and repeated replies, pauses, clock steps and drops: no findings",
        measure: &["simulation"],
        bound: AtLeast(1_000_000.0, "claims a minute"),
        limit: 180,
    },
    Line {
        id: "memory-one-task",
        engine: "memory",
        promise: "lock and release on one task, beside tokio's own Mutex",
        measure: &["memory-one-task"],
        bound: AtLeast(0.06, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-hot",
        engine: "memory",
        promise: "a hot lock with 1,000 tasks on a thread per core, beside tokio's own Mutex",
        measure: &["memory-hot"],
        bound: AtLeast(0.12, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-hot-one-thread",
        engine: "memory",
        promise: "the same on one thread",
        measure: &["memory-hot-one-thread"],
        bound: AtLeast(0.12, "× tokio's rate"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-memory",
        engine: "memory",
        promise: "100,000 waiters on one lock: memory of each",
        measure: &["memory-waiters", "memory"],
        bound: AtMost(4.0, "KiB"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-wakeups",
        engine: "memory",
        promise: "100,000 waiters on one lock: wakeups per release",
        measure: &["memory-waiters", "wakeups"],
        bound: AtMost(2.0, "polls"),
        limit: 120,
    },
    Line {
        id: "memory-waiters-idle",
        engine: "memory",
        promise: "100,000 waiters on one lock: processor while nothing happens",
        measure: &["memory-waiters", "idle"],
        bound: AtMost(2.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "memory-held-memory",
        engine: "memory",
        promise: "100,000 locks held with renewal: memory of each",
        measure: &["memory-held", "memory"],
        bound: AtMost(4.0, "KiB"),
        limit: 120,
    },
    Line {
        id: "memory-held-idle",
        engine: "memory",
        promise: "100,000 locks held with renewal: processor while nothing else happens",
        measure: &["memory-held", "idle"],
        bound: AtMost(2.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "sqlite-normal",
        engine: "sqlite",
        promise: "lock and release (p50), beside two bare one-row transactions with synchronous=NORMAL",
        measure: &["sqlite-normal"],
        bound: AtMost(1.3, "× their time"),
        limit: 180,
    },
    Line {
        id: "sqlite-full",
        engine: "sqlite",
        promise: "the same with synchronous=FULL",
        measure: &["sqlite-full"],
        bound: AtMost(1.3, "× their time"),
        limit: 300,
    },
    Line {
        id: "sqlite-handoff",
        engine: "sqlite",
        promise: "handoff from one process to another (p50)",
        measure: &["sqlite-handoff"],
        bound: AtMost(5.0, "ms"),
        limit: 120,
    },
    Line {
        id: "sqlite-killed",
        engine: "sqlite",
        promise: "kill -9 of a holder and of a waiter, 1,000 times: the next is granted within 1 s, tokens grow, nothing is left",
        measure: &["sqlite-killed"],
        bound: AtMost(0.0, "violations"),
        limit: 600,
    },
    Line {
        id: "sqlite-stopped",
        engine: "sqlite",
        promise: "a process stopped in the middle of a transaction for four leases costs no other its lease",
        measure: &["sqlite-stopped"],
        bound: AtMost(0.0, "leases lost"),
        limit: 120,
    },
    Line {
        id: "sqlite-idle",
        engine: "sqlite",
        promise: "100 idle waiting processes, once started",
        measure: &["sqlite-idle"],
        bound: AtMost(2.0, "% of a core in all"),
        limit: 240,
    },
    Line {
        id: "redis-histories",
        engine: "redis",
        promise: "random histories of the scripts on a server, with deaths, expiries, replays and clock steps: each step as the rule of admission has it",
        measure: &[
            "test",
            "fencepost-redis",
            "script::queue::tests::random_histories_agree_with_the_rule_of_admission",
            "3000",
        ],
        bound: AtLeast(3_000.0, "histories"),
        limit: 900,
    },
    Line {
        id: "redlock-histories",
        engine: "redis",
        promise: "random histories of a node of a quorum, with restarts, lost data, replays and clock steps: votes, tokens, the refused and who is told as the rules have it",
        measure: &[
            "test",
            "fencepost-redis",
            "script::queue::tests::votes::random_histories_of_a_node_agree_with_its_rules",
            "3000",
        ],
        bound: AtLeast(3_000.0, "histories"),
        limit: 900,
    },
    Line {
        id: "redis-commands",
        engine: "redis",
        promise: "commands from the client for an uncontended cycle",
        measure: &["redis-commands"],
        bound: AtMost(2.0, "commands"),
        limit: 120,
    },
    Line {
        id: "redis-commands-contended",
        engine: "redis",
        promise: "commands from the clients for a contended cycle, at worst of 16, 128 and 1,000 waiters in 4 processes",
        measure: &["redis-commands-contended"],
        bound: AtMost(2.1, "commands"),
        limit: 300,
    },
    Line {
        id: "redis-commands-waiting",
        engine: "redis",
        promise: "commands of 1,000 waiters in 4 processes, for each process and second",
        measure: &["redis-commands-waiting"],
        bound: AtMost(1.0, "commands"),
        limit: 120,
    },
    Line {
        id: "redis-handoff-16",
        engine: "redis",
        promise: "handoffs with 16 waiters in 4 processes, beside BLPOP and LPUSH",
        measure: &["redis-handoff", "16"],
        bound: AtLeast(0.5, "× their rate"),
        limit: 300,
    },
    Line {
        id: "redis-handoff-128",
        engine: "redis",
        promise: "handoffs with 128 waiters in 4 processes, beside BLPOP and LPUSH",
        measure: &["redis-handoff", "128"],
        bound: AtLeast(0.5, "× their rate"),
        limit: 300,
    },
    Line {
        id: "redis-handoff-1000",
        engine: "redis",
        promise: "handoffs with 1,000 waiters in 4 processes, beside BLPOP and LPUSH",
        measure: &["redis-handoff", "1000"],
        bound: AtLeast(0.5, "× their rate"),
        limit: 300,
    },
    Line {
        id: "redis-script",
        engine: "redis",
        promise: "server time of a script, at worst of 16, 128 and 1,000 waiters",
        measure: &["redis-script"],
        bound: AtMost(12.0, "µs"),
        limit: 300,
    },
    Line {
        id: "redis-longest",
        engine: "redis",
        promise: "the longest wait in such a line, at worst of 16, 128 and 1,000 waiters",
        measure: &["redis-longest"],
        bound: AtMost(2.2, "× the mean"),
        limit: 300,
    },
    Line {
        id: "redis-owners",
        engine: "redis",
        promise: "a closed loop of 16 tasks in 4 processes: grants that go to another task",
        measure: &["redis-owners"],
        bound: AtLeast(90.0, "%"),
        limit: 120,
    },
    Line {
        id: "redis-one-task",
        engine: "redis",
        promise: "lock and release (p50), beside `SET NX PX` and a compare-and-delete by hand, which give no token and no line",
        measure: &["redis-one-task"],
        bound: AtMost(1.2, "× their time"),
        limit: 180,
    },
    Line {
        id: "redis-dropped",
        engine: "redis",
        promise: "lock and drop of the guard (p50), beside the same",
        measure: &["redis-dropped"],
        bound: AtMost(0.8, "× their time"),
        limit: 180,
    },
    Line {
        id: "redis-many-tasks",
        engine: "redis",
        promise: "64 tasks on one connection, beside the same",
        measure: &["redis-many-tasks"],
        bound: AtLeast(0.5, "× their rate"),
        limit: 180,
    },
    Line {
        id: "redis-peers",
        engine: "redis",
        promise: "other libraries, as far as their tools are here: nobody is ahead where anybody waits, and Redisson is five times behind there; with 64 tasks nobody but rslock is, with one task none of distributed-lock, redlock, redis-py, python-redis-lock and node-redlock",
        measure: &["redis-peers"],
        bound: AtMost(0.0, "peers ahead"),
        limit: 900,
    },
    Line {
        id: "redis-held-client",
        engine: "redis",
        promise: "10,000 locks of 30 s held with renewal: the client's processor",
        measure: &["redis-held", "client", "10000"],
        bound: AtMost(1.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "redis-held-memory",
        engine: "redis",
        promise: "the same: the client's memory in all",
        measure: &["redis-held", "memory", "10000"],
        bound: AtMost(15.0, "MB"),
        limit: 180,
    },
    Line {
        id: "redis-held-server",
        engine: "redis",
        promise: "the same: the server's processor",
        measure: &["redis-held", "server", "10000"],
        bound: AtMost(2.0, "% of a core"),
        limit: 180,
    },
    Line {
        id: "redis-held-many",
        engine: "redis",
        promise: "100,000 locks of 30 s held with renewal",
        measure: &["redis-held", "lost", "100000"],
        bound: AtMost(0.0, "locks lost"),
        limit: 300,
    },
    Line {
        id: "redis-killed-waiters",
        engine: "redis",
        promise: "kill -9 of a process with 1, 100 or 1,000 waiters: what it costs the one behind them",
        measure: &["redis-killed-waiters"],
        bound: AtMost(2.0, "s"),
        limit: 300,
    },
    Line {
        id: "redis-killed-holders",
        engine: "redis",
        promise: "kill -9 of a holder: the next grant, past the holder's lease",
        measure: &["redis-killed-holders"],
        bound: AtMost(1.0, "s"),
        limit: 300,
    },
    Line {
        id: "redis-stopped",
        engine: "redis",
        promise: "60 holders stopped past their lease: `ensure_held` fails on waking, and `lost()` ends",
        measure: &["redis-stopped"],
        bound: AtMost(100.0, "ms"),
        limit: 300,
    },
    Line {
        id: "redis-partition",
        engine: "redis",
        promise: "1,000 holders cut off from the server: each is lost when the server gives its lock away",
        measure: &["redis-partition"],
        bound: AtMost(0.0, "holders that still believed"),
        limit: 300,
    },
    Line {
        id: "redis-impatient",
        engine: "redis",
        promise: "500,000 calls on one name that give up while their request is under way: commands slower than 5 ms; none takes 50 ms, no other lock is lost, at most 1,000 tombstones are left",
        measure: &["redis-impatient", "500000"],
        bound: AtMost(1.0, "of 10,000 commands"),
        limit: 600,
    },
    Line {
        id: "redis-torture",
        engine: "redis",
        promise: "1,000,000 cycles by 4 processes of 16 tasks on 8 locks under kill -9, SIGSTOP, bad networks and restarts of the server (AOF always): histories checked, nothing left",
        measure: &["redis-torture", "1000000", "1"],
        bound: AtMost(0.0, "violations"),
        limit: 1800,
    },
    Line {
        id: "redlock-cycles",
        engine: "redis",
        promise: "Redlock of five, 10,000 cycles of 16 contenders for one lock: no claim left and no key without an expiry, nobody stuck",
        measure: &["redlock-cycles", "10000"],
        bound: AtMost(0.0, "left or stuck"),
        limit: 600,
    },
    Line {
        id: "redlock-start",
        engine: "redis",
        promise: "Redlock of five, one master accepts connections and is silent: how much longer a new client takes for its first cycle (p50)",
        measure: &["redlock-start"],
        bound: AtMost(50.0, "ms"),
        limit: 120,
    },
    Line {
        id: "redlock-one-down",
        engine: "redis",
        promise: "Redlock of five with one master stopped, and with one down: how much the p50 of a cycle grows",
        measure: &["redlock-one-down"],
        bound: AtMost(20.0, "%"),
        limit: 300,
    },
    Line {
        id: "redlock-p50",
        engine: "redis",
        promise: "Redlock of five, lock and release: the p50 beside rslock's, and ahead of redsync's",
        measure: &["redlock-peers"],
        bound: AtMost(1.1, "× rslock's p50"),
        limit: 300,
    },
];
