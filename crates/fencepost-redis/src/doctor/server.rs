//! One server: what its set-up means for locks.

use fencepost_core::{Finding, Severity};

use super::{Facts, Probe, Role};

/// From here on a limit is close.
const FULL: u64 = 90;

pub(super) fn judge(facts: &Facts, role: Role) -> Vec<Finding> {
    if !facts.has_info() {
        let says = "this user may not read INFO: eviction, persistence and replicas are not checked";
        return vec![
            Finding::warning("rights", says)
                .advice("grant it +info and +config|get, or run doctor as another user"),
        ];
    }
    let mut findings = vec![server(facts), eviction(facts), persistence(facts, role)];
    findings.extend(saving(facts));
    findings.extend(memory(facts));
    findings.extend(clients(facts));
    findings.extend(events(facts));
    if !facts.has_settings() {
        let says = "this user may not read CONFIG: findings that depend on it are missing";
        findings.push(Finding::note("rights", says));
    }
    findings
}

fn server(facts: &Facts) -> Finding {
    let (name, version) = match facts.info("valkey_version") {
        "" => ("Redis", facts.info("redis_version")),
        version => ("Valkey", version),
    };
    let up = age(facts.number("uptime_in_seconds"));
    let says = format!("{name} {version}, up for {up}");
    if facts.info("role") == "master" {
        return Finding::ok("server", says);
    }
    Finding::problem("server", format!("{says}; it is a replica, and takes no locks"))
        .advice("name its master, or use redis+sentinel:")
}

fn eviction(facts: &Facts) -> Finding {
    let (policy, limit) = (facts.info("maxmemory_policy"), facts.number("maxmemory"));
    let advice = "set maxmemory-policy noeviction, or give locks a server of their own";
    // Every lock has an expiry, so volatile-* evicts locks as allkeys-* does.
    match policy {
        "noeviction" if limit == 0 => Finding::ok("eviction", "noeviction, without a limit of memory"),
        "noeviction" => {
            let limit = bytes(limit);
            let says = format!("noeviction: at {limit} of memory new locks are refused, and held ones stay");
            Finding::ok("eviction", says)
        }
        "" => Finding::note("eviction", "the server does not say whether it evicts keys").advice(advice),
        _ if limit == 0 => {
            let says = format!(
                "{policy}, without a limit of memory: nothing is evicted until somebody sets maxmemory"
            );
            Finding::warning("eviction", says).advice(advice)
        }
        _ => {
            let (limit, evicted) = (bytes(limit), facts.number("evicted_keys"));
            let says = format!(
                "{policy}: at {limit} of memory the server deletes held locks, so two clients may hold one \
                 ({evicted} keys evicted so far)"
            );
            Finding::problem("eviction", says).advice(advice)
        }
    }
}

fn persistence(facts: &Facts, role: Role) -> Finding {
    let aof = facts.info("aof_enabled") == "1";
    let setting = if aof { "appendfsync" } else { "save" };
    let always =
        "appendonly yes and appendfsync always close this; a resource that checks tokens is safe anyway";
    let (severity, says) = match (aof, facts.setting(setting)) {
        (true, Some("always")) => {
            return Finding::ok(
                "persistence",
                "every write is on the disk before it is answered: a restart forgets no grant",
            );
        }
        (true, Some("no")) => (
            Severity::Warning,
            "appendfsync no: a crash of the machine may forget the grants of half a minute".to_owned(),
        ),
        (true, Some(sync)) => (
            Severity::Note,
            format!(
                "appendfsync {sync}: a crash of the machine may forget the grants of the last second or two"
            ),
        ),
        (true, None) => (
            Severity::Note,
            "an append-only file: whether a crash may forget the last grants depends on appendfsync"
                .to_owned(),
        ),
        (false, Some("")) => {
            (Severity::Warning, "none: a restart forgets every lock that is held".to_owned())
        }
        (false, Some(save)) => (
            Severity::Warning,
            format!("snapshots alone (save {save}): a restart forgets every grant since the last one"),
        ),
        (false, None) => (
            Severity::Warning,
            "no append-only file: a restart forgets every grant since the last snapshot, if there is one"
                .to_owned(),
        ),
    };
    if role == Role::Node {
        // Its marker keeps it out after a restart, so that what it forgot cannot be granted again.
        let says = format!(
            "{}; after a restart it stays out until all that it may have forgotten is over",
            first(&says)
        );
        return Finding::ok("persistence", says);
    }
    Finding::new(severity, "persistence", says).advice(always)
}

/// Returns the text before the colon.
fn first(says: &str) -> &str {
    says.split_once(": ").map_or(says, |(first, _)| first)
}

/// Whether what is to be saved can be.
fn saving(facts: &Facts) -> Option<Finding> {
    let failed = |field| facts.info(field) == "err";
    if failed("aof_last_write_status") {
        let says = "the append-only file cannot be written: the server takes no locks";
        return Some(Finding::problem("disk", says).advice("look at its log and its disk"));
    }
    if !failed("rdb_last_bgsave_status") {
        return None;
    }
    let says = "the last snapshot failed";
    let finding = match facts.setting("stop-writes-on-bgsave-error") {
        Some("no") => Finding::warning("disk", says),
        _ => Finding::problem("disk", format!("{says}: the server takes no locks until one succeeds")),
    };
    Some(finding.advice("look at its log and its disk"))
}

fn memory(facts: &Facts) -> Option<Finding> {
    let (used, limit) = (facts.number("used_memory"), facts.number("maxmemory"));
    (limit > 0 && used >= limit / 100 * FULL).then(|| {
        let says = format!("{} of {} are used", bytes(used), bytes(limit));
        let advice = "raise maxmemory, or remove other data: new locks are refused when it is full";
        Finding::warning("memory", says).advice(advice)
    })
}

fn clients(facts: &Facts) -> Option<Finding> {
    let limit = match facts.number("maxclients") {
        0 => facts.setting("maxclients")?.parse().ok()?,
        limit => limit,
    };
    let (connected, refused) = (facts.number("connected_clients"), facts.number("rejected_connections"));
    (connected >= limit * FULL / 100).then(|| {
        let says = format!("{connected} of {limit} connections are in use, {refused} were refused so far");
        Finding::warning("clients", says)
            .advice("raise maxclients: a client that cannot reconnect loses its locks")
    })
}

fn events(facts: &Facts) -> Option<Finding> {
    Some(match facts.setting("notify-keyspace-events")? {
        "" => Finding::ok("events", "keyspace notifications are off; locks need none"),
        kinds => Finding::note(
            "events",
            format!(
                "keyspace notifications are on ({kinds}); locks do not need them, and each write becomes slower"
            ),
        ),
    })
}

/// Reports the commands that this user may not run. Only commands that change nothing are tried. The others are those of a cycle, which the
/// doctor makes as well.
pub(super) async fn rights(probe: &mut Probe, prefix: &str) -> Vec<Finding> {
    // This is the name of a key that is not there, too.
    let channel = format!("{prefix}@doctor");
    let name = probe.ask::<String>(&["ACL", "WHOAMI"]).await;
    let who = name.map_or_else(|_| "this user".to_owned(), |name| format!("user {name:?}"));
    let mut findings = Vec::new();
    let mut tried = |may: bool, kind: fn(&'static str, String) -> Finding, command: &str, effect: &str| {
        if !may {
            let says = format!("{who} may not {command}: {effect}");
            findings.push(kind("rights", says).advice("give it the rights in docs/backends/redis.md"));
        }
    };
    let publish = probe.ask::<i64>(&["PUBLISH", &channel, ""]).await.is_ok();
    let effect = "the next waiter learns of its turn only when it asks, up to 1 s later";
    tried(publish, Finding::warning, "PUBLISH", effect);
    let scan = probe.ask::<redis::Value>(&["SCAN", "0", "MATCH", &channel, "COUNT", "1"]).await.is_ok();
    tried(scan, Finding::warning, "SCAN", "locks cannot be listed");
    // A cycle of a lock that nobody else wants needs neither. In a cluster another server may have the key, which is no denial.
    for (command, argument, effect) in [
        ("HMGET", "s", "a lock that somebody waits for cannot be taken or released"),
        ("HSCAN", "0", "a holder or a waiter that has died is never cleared away"),
    ] {
        let answer = probe.ask::<redis::Value>(&[command, &channel, argument]).await;
        let may = !answer.is_err_and(|failure| failure.is_denied());
        tried(may, Finding::problem, command, effect);
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "rights",
            format!("{who} may publish, scan and read; the cycle below shows whether it may lock"),
        ));
    }
    findings
}

/// Bytes as an operator writes them.
fn bytes(count: u64) -> String {
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{} kB", count / 1_024),
        1_048_576..1_073_741_824 => format!("{} MB", count / 1_048_576),
        _ => format!("{:.1} GB", count as f64 / 1_073_741_824.0),
    }
}

/// Seconds as a person reads them.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severity(finding: &Finding) -> (Severity, &'static str) {
        (finding.severity, finding.subject)
    }

    #[test]
    fn whatever_evicts_is_a_problem_once_there_is_a_limit() {
        for (policy, limit, expected) in [
            ("noeviction", 0, Severity::Ok),
            ("noeviction", 1_000_000, Severity::Ok),
            ("allkeys-lru", 0, Severity::Warning),
            ("allkeys-lru", 1_000_000, Severity::Problem),
            ("volatile-ttl", 1_000_000, Severity::Problem),
        ] {
            let facts = Facts::of(&format!("maxmemory_policy:{policy}\r\nmaxmemory:{limit}\r\n"), None);
            assert_eq!(severity(&eviction(&facts)), (expected, "eviction"), "{policy} {limit}");
        }
    }

    #[test]
    fn what_a_restart_forgets_is_told() {
        for (aof, settings, expected) in [
            ("1", [("appendfsync", "always"), ("save", "")], Severity::Ok),
            ("1", [("appendfsync", "everysec"), ("save", "")], Severity::Note),
            ("1", [("appendfsync", "no"), ("save", "")], Severity::Warning),
            ("0", [("appendfsync", "always"), ("save", "3600 1")], Severity::Warning),
            ("0", [("appendfsync", "always"), ("save", "")], Severity::Warning),
        ] {
            let facts = Facts::of(&format!("aof_enabled:{aof}"), Some(&settings));
            assert_eq!(persistence(&facts, Role::Alone).severity, expected, "{aof} {settings:?}");
            assert_eq!(persistence(&facts, Role::Node).severity, Severity::Ok, "its marker keeps it out");
        }
        assert_eq!(persistence(&Facts::of("aof_enabled:0", None), Role::Master).severity, Severity::Warning);
    }

    #[test]
    fn a_disk_that_fails_is_a_problem_where_it_stops_writes() {
        let failing = "rdb_last_bgsave_status:err\naof_last_write_status:ok";
        let with = |value| Facts::of(failing, Some(&[("stop-writes-on-bgsave-error", value)]));
        assert_eq!(saving(&with("yes")).map(|found| found.severity), Some(Severity::Problem));
        assert_eq!(saving(&with("no")).map(|found| found.severity), Some(Severity::Warning));
        assert_eq!(saving(&Facts::of("aof_last_write_status:ok", None)), None);
    }

    #[test]
    fn limits_that_are_close_are_told() {
        let facts =
            Facts::of("used_memory:950000\nmaxmemory:1000000\nconnected_clients:95\nmaxclients:100", None);
        assert!(memory(&facts).is_some() && clients(&facts).is_some());
        let facts = Facts::of("used_memory:1\nmaxmemory:1000000\nconnected_clients:5\nmaxclients:100", None);
        assert!(memory(&facts).is_none() && clients(&facts).is_none());
    }

    #[test]
    fn a_replica_takes_no_locks() {
        let found = server(&Facts::of("redis_version:7.0.15\nrole:slave\nuptime_in_seconds:7300", None));
        assert!(found.severity == Severity::Problem && found.says.contains("up for 2 h"), "{found}");
    }
}
