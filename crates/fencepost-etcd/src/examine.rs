//! What a cluster's set-up and state mean for locks.

use std::sync::Arc;

use fencepost_core::{Finding, Report, Result, Severity};
use futures_util::future::join_all;

use crate::error::Failure;
use crate::lease;
use crate::listing;
use crate::net::{ALARM, MEMBERS, STATUS};
use crate::peer::Peer;
use crate::proto::{
    AlarmRequest, AlarmResponse, MemberInfo, MemberListRequest, MemberListResponse, StatusRequest,
    StatusResponse,
};
use crate::shared::Shared;

/// So many portions of keys are looked through.
const PORTIONS: usize = 10;

/// Versions from which on a deposed leader neither renews nor revokes leases behind its successor's back (2023).
const SOUND: [(u64, u64, u64); 2] = [(3, 4, 25), (3, 5, 8)];

pub(crate) async fn examine(shared: &Arc<Shared>) -> Result<Report> {
    let peers = &shared.net.peers;
    let seen = join_all(peers.iter().map(|peer| shared.net.ask(peer, STATUS, StatusRequest {}))).await;
    if seen.iter().all(Result::is_err)
        && let Some(Err(failure)) = seen.first()
    {
        return Err(Failure::error(failure));
    }
    let alarms = alarms(shared).await;
    let mut findings = Vec::new();
    let mut statuses: Vec<StatusResponse> = Vec::new();
    for (peer, status) in peers.iter().zip(seen) {
        match status {
            Ok(status) => {
                findings.extend(member(peer, &status, alarms.severity != Severity::Note));
                statuses.push(status);
            }
            Err(failure) => findings.push(
                Finding::warning("reach", format!("it does not answer: {}", failure.cause()))
                    .advice("see to it: the cluster works as long as a majority of its members does")
                    .at(&peer.address),
            ),
        }
    }
    findings.push(quorum(shared, &statuses).await);
    findings.push(alarms);
    findings.push(sessions(shared).await);
    findings.push(endless(shared).await);
    findings.push(Finding::ok(
        "clocks",
        "leases run by the leader's own steady clock and deadlines by ours; no wall clock decides anything",
    ));
    Ok(Report::from(findings))
}

/// `alarms`: those that are raised are told elsewhere.
fn member(peer: &Peer, status: &StatusResponse, alarms: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut parts = status.version.split(['.', '-', '+']).map_while(|part| part.parse::<u64>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let shown = &status.version;
    let sound = SOUND.iter().any(|fixed| (fixed.0, fixed.1) == (version.0, version.1) && version >= *fixed);
    findings.push(if version < (3, 4, 0) {
        Finding::problem("version", format!("it is etcd {shown}, which is too old"))
            .advice("use 3.4 or newer")
    } else if !sound && version < (3, 6, 0) {
        Finding::warning(
            "version",
            format!(
                "it is etcd {shown}; a leader that was stopped for longer than a lease and deposed may revoke leases that are \
                 alive when it wakes, and for a moment two hold a lock"
            ),
        )
        .advice("use 3.4.25, 3.5.8 or newer")
    } else {
        Finding::ok("version", format!("it is etcd {shown}"))
    });
    if status.learner {
        findings.push(
            Finding::problem("learner", "it is a learner, which serves no locks")
                .advice("take it out of the URL, or promote it"),
        );
    }
    if status.leader == 0 {
        findings.push(
            Finding::problem("leader", "it knows of no leader").advice("see whether it reaches the others"),
        );
    }
    let errors = status.errors.iter().filter(|error| !(alarms && error.contains("alarm:")));
    findings.extend(errors.map(|error| Finding::warning("errors", error.clone())));
    findings.into_iter().map(|finding| finding.at(&peer.address)).collect()
}

async fn quorum(shared: &Shared, statuses: &[StatusResponse]) -> Finding {
    let members: Result<MemberListResponse, _> = shared.net.call(MEMBERS, MemberListRequest {}, None).await;
    let members: Vec<MemberInfo> = match members {
        Ok(answer) => answer.members.into_iter().filter(|member| !member.learner).collect(),
        Err(failure) => {
            return Finding::note("quorum", format!("its members are not told: {}", failure.cause()));
        }
    };
    let mut leaders: Vec<u64> = statuses.iter().map(|status| status.leader).filter(|id| *id != 0).collect();
    leaders.sort_unstable();
    leaders.dedup();
    let count = members.len();
    let named = shared.net.peers.len();
    if leaders.len() > 1 {
        return Finding::warning("quorum", "its members name different leaders")
            .advice("look again in a moment");
    }
    match count {
        0 | 1 => Finding::note("quorum", "it is one member: while it is down no lock is granted or renewed"),
        _ if count.is_multiple_of(2) => Finding::note(
            "quorum",
            format!("it has {count} members, and bears no more failures than one with {}", count - 1),
        ),
        _ if named == 1 => Finding::warning(
            "quorum",
            format!("it has {count} members and the URL names one: while that is down nothing works"),
        )
        .advice(format!("name all: {}", names(&members))),
        _ => Finding::ok("quorum", format!("{count} members, of which {} may fail", (count - 1) / 2)),
    }
}

/// Where the members can be found.
fn names(members: &[MemberInfo]) -> String {
    let urls = members.iter().filter_map(|member| member.client_urls.first());
    let hosts: Vec<_> = urls.map(|url| url.split_once("://").map_or(&**url, |(_, host)| host)).collect();
    hosts.join(",")
}

async fn alarms(shared: &Shared) -> Finding {
    let answer: Result<AlarmResponse, _> = shared.net.call(ALARM, AlarmRequest {}, None).await;
    match answer {
        Ok(answer) if answer.alarms.iter().any(|alarm| alarm.kind == 1) => {
            Finding::problem("alarms", "a member is out of space: no lock can be taken")
                .advice("compact and defragment it, then etcdctl alarm disarm")
        }
        Ok(answer) if answer.alarms.iter().any(|alarm| alarm.kind == 2) => {
            Finding::problem("alarms", "a member's data is corrupt").advice("replace that member")
        }
        Ok(_) => Finding::ok("alarms", "none is raised"),
        Err(failure) => Finding::note("alarms", format!("they are not told: {}", failure.cause())),
    }
}

/// Keys in locks' folders that nothing ends: whoever asks for such a lock waits for ever.
async fn endless(shared: &Arc<Shared>) -> Finding {
    let folders = match listing::scan(shared, "", PORTIONS).await {
        Ok(folders) => folders,
        Err(error) => return Finding::note("keys", format!("they are not told: {error}")),
    };
    let (mut locks, mut others) = (Vec::new(), Vec::new());
    for (name, found) in &folders {
        let Some((key, count)) = &found.endless else { continue };
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let told = format!("{name} by {key}{more}");
        if found.is_listed(shared) { locks.push(told) } else { others.push(told) }
    }
    let told = |all: &[String]| match all {
        [first] => first.clone(),
        [first, rest @ ..] => format!("{first}; and {} more", rest.len()),
        [] => String::new(),
    };
    if !locks.is_empty() {
        let message = format!("keys without a lease hold locks for ever: {}", told(&locks));
        return Finding::warning("keys", message)
            .advice("if nobody needs them: fencepost show NAME, then evict NAME --token T --now");
    }
    if !others.is_empty() {
        let message = format!(
            "keys of other programs stand where those of locks would: whoever asks for a lock of such a name waits for ever: {}",
            told(&others)
        );
        return Finding::note("keys", message).advice("give the locks a folder of their own: prefix=locks/");
    }
    Finding::ok("keys", "all in the locks' folders end with a lease")
}

/// Does the cluster give the shortest lease that we allow?
async fn sessions(shared: &Arc<Shared>) -> Finding {
    match lease::probe(&shared.net).await {
        Ok(seconds) if seconds <= lease::SHORTEST.as_secs() => {
            Finding::ok("leases", format!("the shortest is {seconds} s"))
        }
        Ok(seconds) => Finding::note(
            "leases",
            format!(
                "the shortest is {seconds} s, because elections may take so long here: a lock of a process that dies stays \
                 locked so long at least"
            ),
        ),
        Err(failure) => Finding::problem("leases", format!("none could be had: {}", failure.cause())),
    }
}
