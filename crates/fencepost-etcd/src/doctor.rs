//! Checks the cluster.

use std::sync::Arc;

use fencepost_core::{Finding, Report, Result, Severity, checks};
use futures_util::future::join_all;

use crate::client::EtcdClient;
use crate::lease::SHORTEST;
use crate::operator;
use crate::rpc::channel::Member;
use crate::rpc::proto::{AlarmRequest, MemberInfo, MemberListRequest, StatusReply, StatusRequest};

/// At most `PAGES` pages of keys are scanned.
const PAGES: usize = 10;

/// From these versions (2023) on a deposed leader does not renew or revoke leases.
const FIXED: [(u32, u32, u32); 2] = [(3, 4, 25), (3, 5, 8)];

pub(crate) async fn examine(client: &Arc<EtcdClient>) -> Result<Report> {
    let members = &client.cluster.members;
    let status = |member| client.cluster.call_member(member, StatusRequest {});
    let replies = join_all(members.iter().map(status)).await;
    if replies.iter().all(Result::is_err)
        && let Some(Err(failure)) = replies.first()
    {
        return Err(failure.error.clone());
    }
    let alarms = alarms(client).await;
    let mut findings = Vec::new();
    let mut statuses = Vec::new();
    for (member, status) in members.iter().zip(replies) {
        match status {
            Ok(status) => {
                findings.extend(check_member(member, &status, alarms.severity != Severity::Note));
                statuses.push(status);
            }
            Err(failure) => findings.push(
                Finding::warning("reach", format!("it does not reply: {}", failure.words()))
                    .advice("start it, or check the network; the cluster needs a majority of its members")
                    .at(&member.address),
            ),
        }
    }
    findings.push(quorum(client, &statuses).await);
    findings.push(alarms);
    findings.push(leases(client).await);
    findings.push(endless_keys(client).await);
    findings.push(Finding::ok(
        "clocks",
        "leases count by the leader's monotonic clock and deadlines by the client's; no wall clock matters",
    ));
    Ok(Report::from(findings))
}

/// `alarms_reported`: another finding reports the alarms.
fn check_member(member: &Member, status: &StatusReply, alarms_reported: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shown = &status.version;
    let version = checks::version(shown);
    let fixed = FIXED.iter().any(|fixed| (fixed.0, fixed.1) == (version.0, version.1) && version >= *fixed);
    findings.push(if version < (3, 4, 0) {
        Finding::problem("version", format!("etcd {shown} is too old")).advice("use 3.4 or newer")
    } else if !fixed && version < (3, 6, 0) {
        Finding::warning(
            "version",
            format!(
                "etcd {shown}: a leader that was stopped for longer than a lease and deposed may revoke leases that exist when it \
                 continues; for a moment two may hold a lock"
            ),
        )
        .advice("use 3.4.25, 3.5.8 or newer")
    } else {
        Finding::ok("version", format!("etcd {shown}"))
    });
    if status.learner {
        findings.push(
            Finding::problem("learner", "it is a learner, which serves no locks")
                .advice("remove it from the URL, or promote it"),
        );
    }
    if status.leader == 0 {
        findings.push(
            Finding::problem("leader", "it has no leader")
                .advice("check whether it reaches the other members"),
        );
    }
    let errors = status.errors.iter().filter(|error| !(alarms_reported && error.contains("alarm:")));
    findings.extend(errors.map(|error| Finding::warning("errors", error.clone())));
    findings.into_iter().map(|finding| finding.at(&member.address)).collect()
}

async fn quorum(client: &EtcdClient, statuses: &[StatusReply]) -> Finding {
    let members: Vec<MemberInfo> = match client.cluster.call(MemberListRequest {}, None).await {
        Ok(reply) => reply.members.into_iter().filter(|member| !member.learner).collect(),
        Err(failure) => {
            return Finding::note("quorum", format!("the members are unknown: {}", failure.words()));
        }
    };
    let mut leaders: Vec<u64> = statuses.iter().map(|status| status.leader).filter(|id| *id != 0).collect();
    leaders.sort_unstable();
    leaders.dedup();
    if leaders.len() > 1 {
        return Finding::warning("quorum", "the members name different leaders")
            .advice("check again in a moment");
    }
    match members.len() {
        count @ 3.. if count % 2 == 1 && client.cluster.members.len() == 1 => Finding::warning(
            "quorum",
            format!("{count} members, and the URL names one: while that is down nothing works"),
        )
        .advice(format!("name all: {}", hosts(&members))),
        // Another finding names each member that does not reply.
        count => checks::majority("members", count, 0, Severity::Note),
    }
}

fn hosts(members: &[MemberInfo]) -> String {
    let urls = members.iter().filter_map(|member| member.client_urls.first());
    let hosts: Vec<_> = urls.map(|url| url.split_once("://").map_or(&**url, |(_, host)| host)).collect();
    hosts.join(",")
}

async fn alarms(client: &EtcdClient) -> Finding {
    match client.cluster.call(AlarmRequest {}, None).await {
        Ok(reply) if reply.alarms.iter().any(|alarm| alarm.kind == 1) => {
            Finding::problem("alarms", "a member is out of space: no lock can be acquired")
                .advice("compact and defragment it, then etcdctl alarm disarm")
        }
        Ok(reply) if reply.alarms.iter().any(|alarm| alarm.kind == 2) => {
            Finding::problem("alarms", "the data of a member is corrupt").advice("replace that member")
        }
        Ok(_) => Finding::ok("alarms", "none"),
        Err(failure) => Finding::note("alarms", format!("the alarms are unknown: {}", failure.words())),
    }
}

/// Checks for keys without a lease in the locks' queues: a waiter behind them waits until they are deleted.
async fn endless_keys(client: &Arc<EtcdClient>) -> Finding {
    let queues = match operator::scan(client, "", PAGES).await {
        Ok(queues) => queues,
        Err(error) => return Finding::note("keys", format!("the keys are unknown: {error}")),
    };
    let (mut locks, mut others) = (Vec::new(), Vec::new());
    for (name, queue) in &queues {
        let Some((key, count)) = &queue.endless else { continue };
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let found = format!("{name} by {key}{more}");
        if queue.is_listed(client) { locks.push(found) } else { others.push(found) }
    }
    let listed = |all: &[String]| match all {
        [first, rest @ ..] if !rest.is_empty() => format!("{first}; and {} more", rest.len()),
        all => all.concat(),
    };
    if !locks.is_empty() {
        return Finding::warning(
            "keys",
            format!("keys without a lease hold locks forever: {}", listed(&locks)),
        )
        .advice("if nobody needs them: fencepost show NAME, then evict NAME --token T --now");
    }
    if !others.is_empty() {
        let message =
            format!("keys of other programs would hold locks of the same name forever: {}", listed(&others));
        return Finding::note("keys", message).advice("give the locks a prefix of their own: prefix=locks/");
    }
    Finding::ok("keys", "all keys in the locks' queues have a lease")
}

/// Checks whether the cluster grants the shortest lease that the engine allows.
async fn leases(client: &Arc<EtcdClient>) -> Finding {
    match client.leases.shortest().await {
        Ok(seconds) if seconds <= SHORTEST.as_secs() => {
            Finding::ok("leases", format!("the shortest is {seconds} s"))
        }
        Ok(seconds) => Finding::note(
            "leases",
            format!(
                "the shortest is {seconds} s, because of the election timeout: the locks of a killed process stay locked for \
                 at least that time"
            ),
        ),
        Err(failure) => Finding::problem("leases", format!("no lease was granted: {}", failure.words())),
    }
}
