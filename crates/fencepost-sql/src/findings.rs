//! Findings of the doctor that the engines share.

use fencepost_core::Finding;

/// Compares a number with its limit.
#[must_use]
pub fn share(subject: &'static str, used: i64, limit: i64, advice: &'static str) -> Finding {
    let says = format!("{used} of {limit} are in use");
    if used.saturating_mul(5) >= limit.saturating_mul(4) {
        Finding::warning(subject, says).advice(advice)
    } else {
        Finding::ok(subject, says)
    }
}

/// Says whether there are replicas, and whether a commit waits for one of them. `texts`: what follows if there is none, if it waits, and
/// if it does not.
#[must_use]
pub fn replication(replicas: bool, waits: bool, texts: [&str; 3], advice: &str) -> Finding {
    let [none, sound, weak] = texts;
    match (replicas, waits) {
        (false, _) => Finding::note("replication", none),
        (true, true) => Finding::ok("replication", sound),
        (true, false) => Finding::warning("replication", weak).advice(advice),
    }
}

/// Compares the number of connections with its limit.
#[must_use]
pub fn connections(used: i64, limit: i64) -> Finding {
    share("connections", used, limit, "raise max_connections, or lower connections= in the URLs")
}

/// Says that the clocks of the server and of its clients need not agree, because locks end with the idle timeout.
#[must_use]
pub fn idle_clocks() -> Finding {
    Finding::ok(
        "clocks",
        "idle timeouts count by the server's clock and deadlines by the client's; they need not agree",
    )
}

/// Says that the server's clock ends leases.
#[must_use]
pub fn lease_clocks() -> Finding {
    Finding::note(
        "clocks",
        "leases end by the server's clock: if it is set forward, a lock can be granted early",
    )
    .advice("slew the server's clock, and check tokens")
}
