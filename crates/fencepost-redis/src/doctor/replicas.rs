//! A master's replicas, and how far behind they are.

use fencepost_core::Finding;
use futures_util::future::join_all;

use super::clocks::{self, Skew};
use super::{Facts, ProbeOptions, Role};
use crate::config::Address;

/// A replica says where it is once a second; silent for longer than this it lags.
const SILENT: u64 = 3;
/// The allowed lag in bytes: a handful of locks.
const BEHIND: u64 = 64 * 1024;

/// A replica as its master knows it.
#[derive(PartialEq, Eq, Debug)]
struct Replica {
    address: Address,
    online: bool,
    /// Bytes that it has not confirmed.
    behind: u64,
    /// Seconds since its last word.
    silent: u64,
}

pub(super) async fn look(options: &ProbeOptions, facts: &Facts, master: &Skew, role: Role) -> Vec<Finding> {
    let replicas = all(facts);
    let mut findings = vec![replication(&replicas, role)];
    findings.extend(cut_off(facts, &replicas, role));
    for replica in &replicas {
        findings.push(judge(replica));
    }
    // Replicas are often not for clients to see: one that cannot be reached from here is no finding.
    let skews = replicas.iter().map(|replica| async {
        let mut probe = options.open(&replica.address).await.ok()?;
        let skew = clocks::measure(&mut probe).await.ok()?;
        clocks::between(master, &skew).map(|finding| finding.at(probe.shown()))
    });
    findings.extend(join_all(skews).await.into_iter().flatten());
    findings
}

/// `slave0:ip=127.0.0.1,port=7001,state=online,offset=42,lag=1`.
fn all(facts: &Facts) -> Vec<Replica> {
    let end = facts.number("master_repl_offset");
    let read = |number: u64| {
        let line = facts.info(&format!("slave{number}"));
        let field = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        Some(Replica {
            address: Address::Tcp(field("ip")?.to_owned(), field("port")?.parse().ok()?),
            online: field("state") == Some("online"),
            behind: end.saturating_sub(field("offset")?.parse().unwrap_or(0)),
            silent: field("lag")?.parse().unwrap_or(0),
        })
    };
    (0..facts.number("connected_slaves")).filter_map(read).collect()
}

fn replication(replicas: &[Replica], role: Role) -> Finding {
    match (replicas.len(), role) {
        (0, Role::Node) => Finding::ok("replication", "no replica, as a node of a quorum should be"),
        (_, Role::Node) => Finding::note(
            "replication",
            "it has replicas, which add nothing to a quorum: one that takes its place stays out for the longest lease",
        ),
        (0, Role::Alone) => {
            Finding::ok("replication", "no replica: no failover can forget a grant, and no lock is granted while it is down")
        }
        (0, Role::Master) => Finding::warning("replication", "no replica: no server takes over if this one fails")
            .advice("add one, or accept that no lock is granted meanwhile"),
        (count, _) => Finding::note(
            "replication",
            format!(
                "asynchronous, to {count} replica{}: a failover may forget the last grants, and two may hold one lock until \
                 the first one's lease ends",
                if count == 1 { "" } else { "s" },
            ),
        )
        .advice("let the resource check tokens"),
    }
}

/// Whether a master that nobody follows any more goes on granting.
fn cut_off(facts: &Facts, replicas: &[Replica], role: Role) -> Option<Finding> {
    if role != Role::Master || replicas.is_empty() {
        return None;
    }
    (facts.setting("min-replicas-to-write")? == "0").then(|| {
        let says =
            "min-replicas-to-write is 0: a master that is cut off still grants locks to the clients that reach it";
        Finding::note("replication", says)
            .advice("min-replicas-to-write 1 shortens that to min-replicas-max-lag, from Redis 7.0 on: earlier versions ignore it for scripts")
    })
}

fn judge(replica: &Replica) -> Finding {
    let Replica { online, behind, silent, .. } = *replica;
    let says = match (online, silent) {
        (false, _) => "it is loading its data: it cannot take over yet".to_owned(),
        (true, SILENT..) => format!(
            "it lags: silent for {silent} s, {behind} bytes behind; a failover to it loses the missing data"
        ),
        (true, _) if behind > BEHIND => {
            format!("it lags: {behind} bytes behind; a failover to it loses the missing data")
        }
        (true, _) => {
            return Finding::ok("replica", format!("in sync: {behind} bytes behind"))
                .at(&replica.address.to_string());
        }
    };
    Finding::warning("replica", says)
        .advice("look at its log, its load and its network")
        .at(&replica.address.to_string())
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn replicas_are_read_and_judged() {
        let facts = Facts::of(
            "connected_slaves:4\r\nmaster_repl_offset:1000000\r\n\
             slave0:ip=10.0.0.1,port=7001,state=online,offset=999900,lag=1\r\n\
             slave1:ip=10.0.0.2,port=7001,state=online,offset=900000,lag=0\r\n\
             slave2:ip=10.0.0.3,port=7001,state=online,offset=1000000,lag=9\r\n\
             slave3:ip=::1,port=7001,state=wait_bgsave,offset=0,lag=0\r\n",
            Some(&[("min-replicas-to-write", "0")]),
        );
        let replicas = all(&facts);
        let found: Vec<_> = replicas.iter().map(judge).collect();
        let severities: Vec<_> = found.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Ok, Severity::Warning, Severity::Warning, Severity::Warning]);
        assert!(found[1].says.contains("100000 bytes behind"), "{}", found[1]);
        assert!(found[2].says.contains("silent for 9 s"), "{}", found[2]);
        assert_eq!(found[3].place.as_deref(), Some("[::1]:7001"));
        assert!(cut_off(&facts, &replicas, Role::Master).is_some());
        assert!(cut_off(&facts, &replicas, Role::Alone).is_none(), "nobody fails over to it");
    }

    #[test]
    fn a_master_alone_among_others_is_a_warning() {
        for (role, severity) in
            [(Role::Alone, Severity::Ok), (Role::Node, Severity::Ok), (Role::Master, Severity::Warning)]
        {
            assert_eq!(replication(&[], role).severity, severity);
        }
    }
}
