//! The result of a check, for people and for monitoring.

use std::time::Duration;

use fencepost_core::{Capabilities, ClaimInfo, Info, Name, Run, Runs, visible};

use crate::duration::shown;
use crate::runs;

/// The engine's clock may be set back by so many microseconds without an alarm. After a longer step the age of a run is not known.
const CLOCK_STEP: u64 = 60_000_000;

/// The answer of a check, in the order of its exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// A run has succeeded lately, and the lock is not held for too long.
    Ok,
    /// The lock is held for too long.
    Warning,
    /// No run has succeeded lately, or the last one failed.
    Critical,
    /// The engine does not reply, or keeps no runs.
    Unknown,
}

impl Status {
    /// Returns the exit code of monitoring plugins.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the word of monitoring plugins.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// A limit with the text that the user wrote, for messages.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Its length.
    pub length: Duration,
    /// Its text.
    pub text: String,
}

/// The limits that the user sets.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// A run has succeeded within this time.
    pub age: Option<Limit>,
    /// Nobody has held the lock for longer.
    pub held: Option<Limit>,
}

/// The result of a check.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// The answer.
    pub status: Status,
    /// A sentence that begins with the lock's name.
    pub text: String,
    /// How long ago the last good run ended.
    pub age: Option<Duration>,
    /// How long the lock has been held by the one who has held it longest; zero if it is free.
    pub held: Option<Duration>,
}

impl Verdict {
    /// Makes the verdict of a look that failed.
    pub fn unknown(text: String) -> Self {
        Self { status: Status::Unknown, text, age: None, held: None }
    }

    /// Judges what a look at an engine with these capabilities has found.
    pub fn of(info: &Info, capabilities: &Capabilities, limits: &Limits) -> Verdict {
        judge(info, runs::not_kept(capabilities).as_deref(), limits)
    }

    /// Judges a lock of an engine that has no locks yet.
    pub fn of_nothing(name: &Name, limits: &Limits) -> Verdict {
        judge(&Info::new(name.clone(), None, Vec::new()), None, limits)
    }
}

fn judge(info: &Info, not_kept: Option<&str>, limits: &Limits) -> Verdict {
    let runs = info.runs.as_ref();
    let age = runs.and_then(|runs| Some(runs.age(runs.good.as_ref()?.ended_micros?)));
    let longest = info.holders().max_by_key(|holder| held_for(holder, runs));
    let held = longest.map_or(Duration::ZERO, |holder| held_for(holder, runs));
    let name = &info.name;
    let (status, text) = match limits.age.as_ref().map(|limit| judge_runs(name, runs, not_kept, age, limit)) {
        Some((status, text)) if status != Status::Ok => {
            let holder = longest.map(|holder| format!("; held by {} for {}", who(holder), shown(held)));
            (status, text + &holder.unwrap_or_default())
        }
        good => match (&limits.held, longest, good) {
            (Some(limit), Some(holder), _) if held > limit.length => {
                let (held, limit, who) = (shown(held), &limit.text, who(holder));
                (Status::Warning, format!("{name} has been held for {held}, longer than {limit}, by {who}"))
            }
            (_, Some(_), Some((_, text))) => (Status::Ok, format!("{text}; held for {}", shown(held))),
            (_, None, Some((_, text))) => (Status::Ok, text),
            (_, Some(_), None) => (Status::Ok, format!("{name} has been held for {}", shown(held))),
            (_, None, None) => (Status::Ok, format!("{name} is free")),
        },
    };
    Verdict { status, text, age, held: Some(held) }
}

/// The engine's own clock is the better one, where it kept the time of the grant.
fn held_for(holder: &ClaimInfo, runs: Option<&Runs>) -> Duration {
    let running = runs.and_then(|runs| Some((runs, runs.running.as_ref()?)));
    match running {
        Some((runs, run)) if holder.token == Some(run.token) => runs.age(run.since_micros),
        _ => holder.age,
    }
}

fn judge_runs(
    name: &Name,
    runs: Option<&Runs>,
    not_kept: Option<&str>,
    age: Option<Duration>,
    limit: &Limit,
) -> (Status, String) {
    let none = |why: &str| {
        let limit = &limit.text;
        (Status::Critical, format!("{name} has had no successful run for {limit}: {why}"))
    };
    let Some(runs) = runs else {
        return match not_kept {
            None => none("none is recorded"),
            Some(why) => (Status::Unknown, format!("{name}: {why}; or use --max-held without --max-age")),
        };
    };
    let is_bad = |run: &&Run| !run.is_good();
    if let Some(last) = runs.last.as_ref().filter(is_bad) {
        return (Status::Critical, format!("{name}: the last run failed: {}", runs::phrase(last, runs)));
    }
    let latest = runs.now_micros.saturating_add(CLOCK_STEP);
    match (age, &runs.good) {
        (_, Some(good)) if good.ended_micros > Some(latest) => {
            none("the last one ended in the future, because the engine's clock was set back")
        }
        (Some(age), Some(good)) if age <= limit.length => {
            let (age, run) = (shown(age), runs::phrase(good, runs));
            (Status::Ok, format!("{name} succeeded {age} ago: {run}"))
        }
        (Some(age), _) => none(&format!("the last one ended {} ago", shown(age))),
        (None, _) => none("none has ended yet"),
    }
}

fn who(claim: &ClaimInfo) -> String {
    visible(&claim.holder.to_string())
}
