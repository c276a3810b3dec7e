//! Checks the server of a lease table.

use fencepost_core::{Finding, Report};
use fencepost_sql::{Failure, findings};

use crate::conn::channel::Channel;
use crate::doctor::{connections, durability, facts, replication, version};

pub(crate) async fn examine(channel: &Channel, server: &str) -> Result<Report, Failure> {
    let facts = facts(channel, server).await?;
    let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
    let replicas = [
        "no binary log, so no replica: while the server is down no lock is granted or renewed",
        "semi-synchronous: a replica has each grant before its holder",
        "replicas are asynchronous: after a failover two can hold a lock; tokens grow only if the servers' clocks agree",
    ];
    Ok(Report::from(vec![
        version(fact("version")),
        durability(
            &fact,
            "a grant is on the disk before its holder knows of it",
            "a crash of the machine can lose the last grants, so that two hold a lock; tokens grow unless the clock steps back",
        ),
        replication(&fact, replicas),
        Finding::note(
            "messages",
            "the server sends none: the first waiter of another process polls every 50 to 100 ms, others less often",
        ),
        connections(&fact),
        findings::lease_clocks(),
    ]))
}
