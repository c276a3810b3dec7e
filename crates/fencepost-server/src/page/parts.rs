//! The parts of the page: what a caller may see, of one look at the engine.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{HolderInfo, Info, Name, Run, Runs};
use serde::Deserialize;

use crate::history::Grant;
use crate::hour::{Hour, Minute};
use crate::page::Kept;
use crate::page::charts::columns;
use crate::page::html::{ago, clock, encoded, link, millis, named, number, own_label, table, text};
use crate::page::rows::{LateJob, attention, is_overdue};
use crate::page::runs::{late, run_strip};
use crate::page::timeline::{
    self, count, held, late_because, most, queue, situation, timeline, waited, with_holders,
};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::seen::Seen;
use crate::service::Service;

/// The most locks on a page.
const LOCKS: usize = 100;
/// The most groups, overdue holders and grants on a page.
const SHORT: usize = 20;
/// The most recent grants among all locks.
const RECENT: usize = 60;
/// The most recent grants of one lock, and the most locks with such grants.
const RECENT_OF_LOCK: usize = 10;
const RECENT_LOCKS: usize = 6;
/// The most grants of a lock on its own page: all that are kept.
pub(crate) const OF_LOCK: usize = 1_000;
/// The most hot locks.
const HOT: usize = 10;
/// The most waiters of a lock among all locks, and on its own page.
const WAITERS: usize = 3;
const QUEUE: usize = 100;

/// What a reader without a lock can do next.
const EMPTY: &str = "<div class=\"empty\"><p><strong class=\"plain\">Nothing is held or waited for.</strong></p><p>Take a lock, and it \
                     appears here:</p><pre tabindex=\"0\"><code>fencepost run hello -- sleep 60</code></pre></div>";

/// The query of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Asked {
    /// The beginning of the names.
    pub(crate) prefix: String,
    /// A part of a name, a holder, a host or a reason.
    pub(crate) search: String,
    /// The last name of the page before.
    pub(crate) after: Option<String>,
    /// One lock alone.
    pub(crate) name: Option<String>,
}

/// The id of a section, and its HTML.
pub(crate) type Section = (&'static str, String);

/// The contents of a page.
pub(crate) struct Parts<'a> {
    /// The sections before the table of locks.
    pub(crate) above: Vec<Section>,
    pub(crate) locks: Vec<&'a Info>,
    /// The most waiters of a lock that are shown in its row. `None`: a section shows them.
    pub(crate) waiters: Option<usize>,
    /// The sections after it.
    pub(crate) below: Vec<Section>,
}

/// Chooses what the caller sees. `kept`: what is kept of the lock, if one lock is asked for.
pub(crate) fn parts<'a>(
    service: &Service,
    caller: &Caller,
    asked: &Asked,
    seen: &'a Arc<Seen>,
    kept: &Kept,
) -> Parts<'a> {
    match &asked.name {
        // The name was checked when the page was asked for.
        Some(name) => of_lock(service, caller, Name::new(name).ok(), seen, kept),
        None => of_all(service, caller, asked, seen),
    }
}

fn of_lock<'a>(
    service: &Service,
    caller: &Caller,
    name: Option<Name>,
    seen: &'a Arc<Seen>,
    kept: &Kept,
) -> Parts<'a> {
    let info = name.as_ref().and_then(|name| seen.locks.get(name.as_str()));
    let mut grants = Vec::new();
    if let Some(name) = &name {
        let mut known = service.history.of_lock(name, OF_LOCK);
        let older: Vec<Grant> = kept
            .past
            .grants
            .iter()
            .filter(|old| known.iter().all(|new| new.token != old.token))
            .cloned()
            .collect();
        known.extend(older);
        grants = with_holders(known, name, info, seen);
        grants.truncate(OF_LOCK);
    }
    let may_evict = name.as_ref().is_some_and(|name| caller.may(Verb::Evict, name));
    let mut watched = kept.past.watched.clone();
    watched.extend(service.history.since_micros().map(|since| (since, u64::MAX)));
    let max_age = name.as_ref().and_then(|name| service.max_age(name));
    let mut summary = situation(info, &grants, &service.history, seen.at_micros, may_evict);
    if let Some((name, max_age)) = name.as_ref().zip(max_age) {
        let since = held_since(service, info, seen.at_micros);
        let late = late(service.history.last_good(name), max_age, seen.at_micros, since);
        if !late.is_empty() {
            summary += &late;
            // What to do about an overdue holder is said already.
            if info.is_none_or(|info| !info.holders().any(is_overdue)) {
                summary += &late_because(info, &service.history, seen.at_micros, may_evict);
            }
        }
    }
    Parts {
        above: vec![("summary", summary)],
        locks: info.into_iter().collect(),
        waiters: None,
        below: vec![
            ("queue", info.map(|info| queue(info, seen.at_micros, QUEUE)).unwrap_or_default()),
            ("timeline", timeline(&grants, seen.at_micros, &watched)),
            ("waited", waited(&grants)),
            ("most", most(&grants)),
            ("recent", timeline::recent(caller, &grants, seen.at_micros)),
            (
                "runs",
                run_strip(&grants, seen.at_micros, max_age)
                    + &kept.runs.as_ref().map(kept_runs).unwrap_or_default(),
            ),
            ("about", about(service)),
        ],
    }
}

/// Returns since when the first holder of a lock holds it.
fn held_since(service: &Service, info: Option<&Info>, at_micros: u64) -> Option<u64> {
    let info = info?;
    info.holders().map(|claim| service.history.holding(&info.name, claim, at_micros).since_micros).min()
}

/// Returns the time that the numbers of the last hour cover: less than an hour if this copy has not watched for so long.
fn covered(watched: Duration) -> String {
    match watched < Duration::from_secs(3_600) {
        true => format!("since this copy began to watch, {}", ago(watched)),
        false => "in the last hour".to_owned(),
    }
}

/// Returns the numbers at the head of the page. Those of the last hour count all locks, so only a reader who may read all names sees them.
fn numbers<'a>(
    service: &Service,
    reader: &Caller,
    seen: &Seen,
    locks: impl Iterator<Item = &'a Info>,
) -> String {
    let (mut count, mut waiting) = (0, 0);
    for info in locks {
        count += 1;
        waiting += info.waiters().count();
    }
    let hour = may_examine(reader).then(|| service.history.hour());
    let tile = |class: &str, value: String, word: &str, of: fn(&Minute) -> u32| {
        let chart = hour.as_ref().map(|hour| columns(class, &values(hour, seen.at_micros, of)));
        format!("<li class=\"{class}\"><b>{value}</b> <span>{word}</span>{}</li>", chart.unwrap_or_default())
    };
    let mut tiles =
        tile("locks", number(count), if count == 1 { "lock" } else { "locks" }, |minute| minute.locks);
    tiles += &tile("waits", number(waiting), "waiting", |minute| minute.waiters);
    if let Some(hour) = &hour {
        let since = service.history.since_micros().unwrap_or(seen.at_micros);
        let rate = hour.grants_a_second(since, seen.at_micros);
        tiles += &tile("grants", format!("{rate:.1}"), "grants a second", |minute| minute.grants);
        let sum = |of: fn(&Minute) -> u32| {
            let known = hour.until(seen.at_micros);
            known.iter().flatten().map(of).sum::<u32>().to_string()
        };
        let covered = covered(Duration::from_micros(seen.at_micros.saturating_sub(since)));
        let losses = format!("lost or expired {covered}");
        tiles += &tile("losses", sum(|minute| minute.losses), &losses, |minute| minute.losses);
        let evictions = format!("evicted {covered}");
        tiles += &tile("evictions", sum(|minute| minute.evictions), &evictions, |minute| minute.evictions);
    }
    format!("<ul class=\"tiles\" aria-label=\"Numbers, with charts of the last hour\">{tiles}</ul>")
}

fn values(hour: &Hour, now_micros: u64, of: fn(&Minute) -> u32) -> Vec<Option<u32>> {
    hour.until(now_micros).iter().map(|minute| minute.as_ref().map(of)).collect()
}

fn of_all<'a>(service: &Service, caller: &Caller, asked: &Asked, seen: &'a Arc<Seen>) -> Parts<'a> {
    let prefixes = caller.readable(&asked.prefix);
    let all = || {
        let begun = |prefix: &String| (prefix.clone(), seen.locks.range(prefix.clone()..));
        let ranges = prefixes.iter().map(begun);
        ranges.flat_map(|(prefix, range)| {
            range.map(|(_, info)| info).take_while(move |info| info.name.as_str().starts_with(&prefix))
        })
    };
    let sought = asked.search.to_lowercase();
    let found: Vec<&Info> = all().filter(|info| info.mentions(&sought)).collect();
    let is_next = |info: &&&Info| asked.after.as_deref().is_none_or(|after| info.name.as_str() > after);
    let mut locks: Vec<&Info> = found.iter().filter(is_next).take(LOCKS + 1).copied().collect();
    let has_more = locks.len() > LOCKS;
    locks.truncate(LOCKS);
    let is_shown = |name: &Name| {
        let name = name.as_str();
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let has = |text: &str| sought.is_empty() || text.to_lowercase().contains(&sought);
    let hot = service.history.hot(HOT, |name| is_shown(name) && has(name.as_str()));
    let mut taken: HashMap<Name, usize> = HashMap::new();
    let recents = service.history.recent(RECENT, |grant| {
        let is_sought = is_shown(&grant.name) && (has(grant.name.as_str()) || has(&grant.holder.label));
        // A hot lock leaves room for others.
        is_sought && (taken.len() < RECENT_LOCKS || taken.contains_key(&grant.name)) && {
            let taken = taken.entry(grant.name.clone()).or_default();
            *taken += 1;
            *taken <= RECENT_OF_LOCK
        }
    });
    let more = match locks.last().filter(|_| has_more) {
        Some(last) => next_page(asked, last.name.as_str()),
        None => String::new(),
    };
    Parts {
        above: vec![
            ("numbers", numbers(service, caller, seen, all())),
            (
                "overdue",
                attention(
                    caller,
                    all(),
                    &late_jobs(service, seen, &is_shown),
                    &service.history,
                    seen.at_micros,
                    SHORT,
                ),
            ),
            ("groups", groups(all(), &asked.prefix)),
            ("summary", summary(all().count(), found.len(), locks.len(), prefixes.is_empty())),
        ],
        locks,
        waiters: Some(WAITERS),
        below: vec![
            ("more", more),
            ("hot", hot_locks(&hot)),
            ("recent", recent(caller, &recents)),
            ("doctor", doctor(service, caller)),
            ("about", about(service)),
        ],
    }
}

/// Returns the jobs that have no good run as young as they should.
fn late_jobs<'a>(
    service: &'a Service,
    seen: &'a Seen,
    is_shown: &impl Fn(&Name) -> bool,
) -> Vec<LateJob<'a>> {
    let jobs = service.max_ages.iter().filter(|(name, _)| is_shown(name));
    let jobs = jobs.map(|(name, age)| {
        let info = seen.locks.get(name.as_str());
        let since = held_since(service, info, seen.at_micros);
        let words = late(service.history.last_good(name), *age, seen.at_micros, since);
        LateJob { name, words, info }
    });
    jobs.filter(|job| !job.words.is_empty()).collect()
}

fn summary(all: usize, found: usize, shown: usize, is_refused: bool) -> String {
    // The script asks for other names while the page is open.
    if is_refused {
        return "<p>This access token does not have the right <code>read</code> for names that begin like this.</p>"
            .to_owned();
    }
    let locks = if found == 1 { "lock" } else { "locks" };
    match (all, found) {
        (0, _) => EMPTY.to_owned(),
        (_, 0) => "<div class=\"empty\"><p>No lock matches the search.</p><p>A free lock is in no list. <a href=\"./\">Show all locks</a></p></div>"
            .to_owned(),
        _ if shown < found => format!("<p>{shown} of {} {locks}</p>", number(found)),
        _ => format!("<p>{} {locks}</p>", number(found)),
    }
}

/// Returns links to the parts of the names after the prefix, up to the next `/`.
fn groups<'a>(locks: impl Iterator<Item = &'a Info>, prefix: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for info in locks {
        let name = info.name.as_str();
        if let Some(end) = name.get(prefix.len()..).and_then(|rest| rest.find('/')) {
            *counts.entry(&name[..=prefix.len() + end]).or_default() += 1;
        }
    }
    if counts.is_empty() && prefix.is_empty() {
        return String::new();
    }
    let mut groups = "<nav aria-label=\"Groups of names\"><ul>".to_owned();
    if !prefix.is_empty() {
        groups.push_str("<li><a href=\"./\">all names</a></li>");
    }
    for (group, count) in counts.iter().take(SHORT) {
        let label = text(group);
        let _ = write!(
            groups,
            "<li><a href=\"./?prefix={}\"><bdi>{label}</bdi></a> {}</li>",
            encoded(group),
            number(*count)
        );
    }
    if counts.len() > SHORT {
        let _ = write!(groups, "<li>and {} more groups</li>", counts.len() - SHORT);
    }
    groups.push_str("</ul></nav>");
    groups
}

fn next_page(asked: &Asked, last: &str) -> String {
    let (prefix, search, after) = (encoded(&asked.prefix), encoded(&asked.search), encoded(last));
    format!("<p><a href=\"./?prefix={prefix}&amp;search={search}&amp;after={after}\">Next page</a></p>")
}

fn hot_locks(hot: &[crate::history::Hot]) -> String {
    let columns = ["Lock", "Handoffs a second", "Waiting, median", "Waiting, 99th percentile"];
    let rows = hot.iter().map(|hot| {
        let waited = |index: usize| hot.waited.map_or_else(|| "–".to_owned(), |waited| millis(waited[index]));
        vec![link(hot.name.as_str()), format!("{:.1}", hot.rate), waited(0), waited(1)]
    });
    table("Hot locks of the last minute", &columns, rows)
}

/// Returns the recent grants for this reader, grouped by lock and folded. `grants`: the latest first.
fn recent(reader: &Caller, grants: &[Grant]) -> String {
    let mut locks: Vec<(&Name, Vec<&Grant>)> = Vec::new();
    for grant in grants {
        match locks.iter_mut().find(|(name, _)| **name == grant.name) {
            Some((_, grants)) => grants.push(grant),
            None => locks.push((&grant.name, vec![grant])),
        }
    }
    if locks.is_empty() {
        return String::new();
    }
    let mut section = "<h2>Recent grants</h2>".to_owned();
    for (name, grants) in locks {
        let label = text(name.as_str());
        let last = grants.first().map_or_else(String::new, |grant| clock(grant.since_micros));
        let _ = write!(
            section,
            "<details data-key=\"of-{label}\"><summary data-key=\"open-{label}\"><bdi>{label}</bdi> <small>{}, last {last}</small>\
             </summary>{}</details>",
            count(grants.len(), "grant"),
            grants_of(reader, &grants)
        );
    }
    section
}

fn grants_of(reader: &Caller, grants: &[&Grant]) -> String {
    let is_shown = |column: &str| column != "Caller" || reader.is_named();
    let all = ["Granted", "Caller", "Holder", "Waited", "Held for", "End"];
    let columns: Vec<&str> = all.into_iter().filter(|column| is_shown(column)).collect();
    let rows = grants.iter().map(|grant| {
        let end = grant.end.map_or("holds", |end| end.how.as_str());
        let caller = grant.caller.as_deref();
        let cells = [
            clock(grant.since_micros),
            caller.map(named).unwrap_or_default(),
            named(own_label(&grant.holder.label, caller)),
            grant.waited.map_or_else(|| "–".to_owned(), millis),
            held(grant),
            format!("<span class=\"end {end}\">{end}</span>"),
        ];
        all.iter().zip(cells).filter(|(column, _)| is_shown(column)).map(|(_, cell)| cell).collect()
    });
    let caption =
        grants.first().map_or_else(String::new, |grant| format!("Grants of {}", text(grant.name.as_str())));
    table(&caption, &columns, rows)
}

/// Returns the runs that the engine keeps.
fn kept_runs(runs: &Runs) -> String {
    let columns = ["Run", "Token", "Holder", "Began", "Took", "Exit code", "End"];
    let tokens = [&runs.last, &runs.good].map(|run| run.as_ref().map(|run| run.token));
    let all = match tokens[0] == tokens[1] {
        true => vec![("last, good", &runs.last)],
        false => vec![("last", &runs.last), ("last good", &runs.good)],
    };
    let rows = all.into_iter().filter_map(|(which, run)| run.as_ref().map(|run| run_cells(which, run)));
    table("Runs that the engine keeps", &columns, rows)
}

fn run_cells(which: &str, run: &Run) -> Vec<String> {
    let took = run.ended_micros.map(|end| Duration::from_micros(end.saturating_sub(run.since_micros)));
    vec![
        which.to_owned(),
        run.token.to_string(),
        format!("<bdi>{}</bdi>", text(&run.holder.label)),
        clock(run.since_micros),
        took.map_or_else(|| "–".to_owned(), millis),
        run.exit_code.map_or_else(|| "–".to_owned(), |code| code.to_string()),
        if took.is_some() { run.end.as_str() } else { "not reported" }.to_owned(),
    ]
}

/// Returns the last report of `doctor`, for a caller that may read all names: it tells of the engine as a whole.
fn doctor(service: &Service, caller: &Caller) -> String {
    if !may_examine(caller) {
        return String::new();
    }
    let mut doctor = "<h2>Report of doctor</h2>".to_owned();
    if let Some(examined) = service.doctor.last() {
        let _ = write!(doctor, "<p>Examined at {}</p><ul>", clock(examined.at_micros));
        for finding in &examined.report.findings {
            let severity = finding.severity.as_str();
            let place =
                finding.place.as_deref().map(|place| format!("{}: ", text(place))).unwrap_or_default();
            let advice = finding.advice.as_deref().map(|advice| format!("; {}", text(advice)));
            let _ = write!(
                doctor,
                "<li class=\"{severity}\"><strong>{severity}</strong> {place}{}: {}{}</li>",
                finding.subject,
                text(&finding.says),
                advice.unwrap_or_default()
            );
        }
        doctor.push_str("</ul>");
    }
    doctor.push_str(
        "<form method=\"post\" action=\"doctor\"><button data-key=\"examine\">Examine the engine</button> <small>It takes the lock \
         fencepost/doctor for a moment.</small></form>",
    );
    doctor
}

/// Returns whether the caller may examine the engine.
pub(crate) fn may_examine(caller: &Caller) -> bool {
    caller.readable("").first().is_some_and(String::is_empty)
}

fn about(service: &Service) -> String {
    let since = service.history.since_micros().map(clock).unwrap_or_default();
    let own = HolderInfo::this_process();
    let (before, fault) = match &service.archive {
        None => ("", None),
        Some(archive) => (" The page of a lock also has what the history file keeps.", archive.fault()),
    };
    let fault = fault.map_or_else(String::new, |fault| {
        format!("<p class=\"problem\"><strong>The history file fails:</strong> {}. Locks do not depend on it.</p>", text(&fault))
    });
    format!(
        "{fault}<p><small>What this page shows of the past is what this copy of the service (pid {} on <bdi>{}</bdi>) has seen since \
         {since}: at most 1,000 grants of a lock and 10,000 in all, in memory.{before} It looks at the engine every 0.5 s while a page is \
         open, else every 20 s. It misses shorter grants, unless they were made through this copy. Where the end of a grant was not \
         seen, its bar ends when it was seen last, and both limits are given. A grant that ended before its lease counts as released, \
         also if its process died.</small></p>",
        own.pid,
        text(&own.host)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_an_hour_say_if_they_cover_less() {
        let covered = |seconds| covered(Duration::from_secs(seconds));
        assert_eq!(covered(150), "since this copy began to watch, 2 min ago");
        assert_eq!(covered(3_600), "in the last hour");
    }
}
