//! Locks as JSON.

use fencepost_core::{ClaimInfo, Info, Mode, Run, Runs};
use serde::Serialize;
use utoipa::ToSchema;

use crate::process::BY_SERVICE;

/// A lock with its holders and waiters.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) last_token: Option<u64>,
    pub(crate) holders: Vec<Claim>,
    /// In the order of the queue.
    pub(crate) waiters: Vec<Claim>,
    /// Its runs, if the engine has kept some. A list has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<RunsView>,
}

/// The runs of a lock that the engine keeps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunsView {
    running: Option<RunView>,
    /// The run that ended last. Without `ended_micros` its holder has reported no end.
    last: Option<RunView>,
    /// The last run with the exit code 0.
    good: Option<RunView>,
    /// The engine's clock, in microseconds since 1970.
    now_micros: u64,
}

/// A run: the time from a grant to its end.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunView {
    /// `holder`, `host`, `pid` and `reason` are missing for a caller that may not read the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    token: u64,
    /// When it began and ended, by the engine's clock, in microseconds since 1970.
    since_micros: u64,
    ended_micros: Option<u64>,
    exit_code: Option<i32>,
    /// How it ended, if that was reported: `exited`, `max-hold`, `evicted` or `lost`.
    end: Option<&'static str>,
}

impl RunView {
    pub(crate) fn new(run: &Run, may_read: bool) -> RunView {
        let host = run.holder.host.strip_suffix(BY_SERVICE).unwrap_or(&run.holder.host);
        RunView {
            holder: may_read.then(|| run.holder.label.clone()),
            host: may_read.then(|| host.to_owned()),
            pid: may_read.then_some(run.holder.pid),
            reason: run.reason.clone().filter(|_| may_read),
            token: run.token.get(),
            since_micros: run.since_micros,
            ended_micros: run.ended_micros,
            exit_code: run.exit_code,
            end: run.ended_micros.map(|_| run.end.as_str()),
        }
    }
}

impl From<&Runs> for RunsView {
    fn from(runs: &Runs) -> RunsView {
        let view = |run: &Option<Run>| run.as_ref().map(|run| RunView::new(run, true));
        RunsView {
            running: view(&runs.running),
            last: view(&runs.last),
            good: view(&runs.good),
            now_micros: runs.now_micros,
        }
    }
}

/// A claim that holds or waits. It has no part of the secret of a lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Claim {
    pub(crate) holder: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) mode: &'static str,
    /// How many permits it takes, and of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits_of: Option<u32>,
    pub(crate) token: Option<u64>,
    /// For how long it has held, or waited.
    pub(crate) age_ms: u64,
    /// When it was granted or began to wait, in microseconds since 1970. Zero: nobody knows.
    pub(crate) since_micros: u64,
    /// What happened at `since_micros`: the `grant`, or the `arrival` in the queue, of a waiter and of a holder whose engine keeps no time of
    /// the grant.
    pub(crate) since: &'static str,
    /// The longest time for which its holder keeps it.
    pub(crate) max_hold_ms: Option<u64>,
    /// How long after it began to wait it is granted at the latest.
    pub(crate) max_wait_ms: Option<u64>,
    /// How long its lease runs if nobody extends it.
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) reason: Option<String>,
    pub(crate) overdue: bool,
    pub(crate) evicted: bool,
    /// No process holds it: a lease does.
    pub(crate) detached: bool,
    /// Too few nodes of a Redlock show that it holds, because others did not answer or have not voted for it yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unconfirmed: bool,
    /// The format of its record, if a later version of fencepost wrote one that the service cannot read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) later_format: Option<u64>,
}

impl From<&Info> for Lock {
    fn from(info: &Info) -> Lock {
        Lock {
            name: info.name.as_str().to_owned(),
            last_token: info.last_token.map(|token| token.get()),
            holders: info.holders().map(Claim::from).collect(),
            waiters: info.waiters().map(Claim::from).collect(),
            runs: info.runs.as_ref().map(RunsView::from),
        }
    }
}

impl From<&ClaimInfo> for Claim {
    fn from(claim: &ClaimInfo) -> Claim {
        let (mode, permits) = match claim.mode {
            Mode::Exclusive => ("exclusive", None),
            Mode::Shared => ("shared", None),
            Mode::Permits { n, of } => ("permits", Some((n, of))),
        };
        // A process holds it, although the engine knows the lease alone.
        let mut claim = claim.clone();
        if let Some(host) = claim.holder.host.strip_suffix(BY_SERVICE) {
            claim.holder.host = host.to_owned();
            claim.detached = false;
        }
        Claim {
            holder: claim.holder.label.clone(),
            host: claim.holder.host.clone(),
            pid: claim.holder.pid,
            mode,
            permits: permits.map(|(n, _)| n),
            permits_of: permits.map(|(_, of)| of),
            token: claim.token.map(|token| token.get()),
            age_ms: millis(claim.age),
            since_micros: claim.since_micros,
            since: if claim.holds() && !claim.from_arrival { "grant" } else { "arrival" },
            max_hold_ms: claim.max_hold.map(millis),
            max_wait_ms: claim.max_wait.map(millis),
            expires_in_ms: claim.expires_in.map(millis),
            reason: claim.reason.clone(),
            overdue: claim.is_overdue(),
            evicted: claim.evicted,
            detached: claim.detached,
            unconfirmed: claim.unconfirmed,
            later_format: claim.later_format,
        }
    }
}

/// Returns whole milliseconds.
pub(crate) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
