//! The demos of the command come out as told. The command looks at the numbers itself, and ends with 1 if they are not those.

use crate::line::Bound::AtMost;
use crate::line::Line;

pub(super) const LINES: &[Line] = &[
    Line {
        id: "demo-oversell",
        engine: "demo",
        promise: "`fencepost demo oversell`, 20 times: each copied recipe sells more than there is; fencepost and the conditional update sell exactly that",
        measure: &["demo", "oversell", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 1800,
    },
    Line {
        id: "demo-zombie",
        engine: "demo",
        promise: "`fencepost demo zombie`, 20 times: the late write is lost without a token and refused with one",
        measure: &["demo", "zombie", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 300,
    },
    Line {
        id: "demo-segments",
        engine: "demo",
        promise: "`fencepost demo segments`, 20 times: 1,000 pieces in 1 to 40 segments are sold exactly",
        measure: &["demo", "segments", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 900,
    },
    Line {
        id: "demo-cron",
        engine: "demo",
        promise: "`fencepost demo cron`, 20 times: the job runs once with `--once-per`, and again after a host's death with `--retry` alone",
        measure: &["demo", "cron", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 300,
    },
    Line {
        id: "demo-outage",
        engine: "demo",
        promise: "`fencepost demo outage`, 20 times: no work with closed, one holder with a fallback, one a host with local, more with open",
        measure: &["demo", "outage", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 1200,
    },
    Line {
        id: "demo-leader",
        engine: "demo",
        promise: "`fencepost demo leader`, 20 times: terms grow, and each leader that was stopped steps down before it acts",
        measure: &["demo", "leader", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 600,
    },
    Line {
        id: "demo-steps",
        engine: "demo",
        promise: "`fencepost demo steps`, 20 times: the hole of each step of a lock service happens, and the next step closes it",
        measure: &["demo", "steps", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 1200,
    },
    Line {
        id: "demo-herd",
        engine: "demo",
        promise: "`fencepost demo herd`, 20 times: with 1,000 waiters a handoff costs fewer commands than where all poll or all are told",
        measure: &["demo", "herd", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 1200,
    },
    Line {
        id: "demo-table",
        engine: "demo",
        promise: "`fencepost demo table`, 20 times: a lock in a table is stuck, freed too early or shared, and fencepost's is not",
        measure: &["demo", "table", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 600,
    },
    Line {
        id: "demo-failover",
        engine: "demo",
        promise: "`fencepost demo failover`, 20 times: two hold after a failover that forgets a grant, and the token stops the late write",
        measure: &["demo", "failover", "20"],
        bound: AtMost(0.0, "runs that did not come out as told"),
        limit: 600,
    },
];
