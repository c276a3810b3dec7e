//! The parts of the page: what a caller may see, of one look at the engine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Info, Name, Run, Runs};
use serde::Deserialize;

use crate::history::Grant;
use crate::page::html::{clock, encoded, link, named, own_label, shown, table, text};
use crate::page::rows::overdue;
use crate::rights::caller::Caller;
use crate::seen::Seen;
use crate::service::Service;

/// The most locks on a page.
const LOCKS: usize = 100;
/// The most groups, overdue holders and grants on a page.
const SHORT: usize = 20;
/// The most hot locks.
const HOT: usize = 10;
/// The most waiters of a lock: among all locks, and on its own page.
const WAITERS: [usize; 2] = [10, 100];

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
    /// The most waiters of a lock that are shown.
    pub(crate) waiters: usize,
    /// The sections after it.
    pub(crate) below: Vec<Section>,
}

/// Chooses what the caller sees. `runs`: those of the lock, if one lock is asked for.
pub(crate) fn parts<'a>(
    service: &Service,
    caller: &Caller,
    asked: &Asked,
    seen: &'a Arc<Seen>,
    runs: Option<&Runs>,
) -> Parts<'a> {
    match &asked.name {
        // The name was checked when the page was asked for.
        Some(name) => of_lock(service, caller, Name::new(name).ok(), seen, runs),
        None => of_all(service, caller, asked, seen),
    }
}

fn of_lock<'a>(
    service: &Service,
    caller: &Caller,
    name: Option<Name>,
    seen: &'a Arc<Seen>,
    runs: Option<&Runs>,
) -> Parts<'a> {
    let info = name.as_ref().and_then(|name| seen.locks.get(name.as_str()));
    let summary = match info {
        None => "<p>It is free.</p>".to_owned(),
        Some(info) => {
            let (holders, waiting) = (info.holders().count(), info.waiters().count());
            format!("<p>{holders} {}, {waiting} waiting</p>", if holders == 1 { "holder" } else { "holders" })
        }
    };
    let grants = name.as_ref().map(|name| service.history.of_lock(name, SHORT)).unwrap_or_default();
    Parts {
        above: vec![("summary", summary)],
        locks: info.into_iter().collect(),
        waiters: WAITERS[1],
        below: vec![
            ("recent", recent(caller, &grants, false)),
            ("runs", runs.map(kept).unwrap_or_default()),
            ("about", about(service)),
        ],
    }
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
    let found: Vec<&Info> = all().filter(|info| is_found(info, &sought)).collect();
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
    let recents = service.history.recent(SHORT, |grant| {
        is_shown(&grant.name) && (has(grant.name.as_str()) || has(&grant.holder.label))
    });
    let more = match locks.last().filter(|_| has_more) {
        Some(last) => next_page(asked, last.name.as_str()),
        None => String::new(),
    };
    Parts {
        above: vec![
            ("summary", summary(all().count(), found.len(), locks.len(), prefixes.is_empty())),
            ("groups", groups(all(), &asked.prefix)),
            ("overdue", overdue(all(), seen.at_micros, SHORT)),
            ("hot", hot_locks(&hot)),
        ],
        locks,
        waiters: WAITERS[0],
        below: vec![
            ("more", more),
            ("recent", recent(caller, &recents, true)),
            ("doctor", doctor(service, caller)),
            ("about", about(service)),
        ],
    }
}

fn is_found(info: &Info, sought: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(sought);
    sought.is_empty()
        || has(info.name.as_str())
        || info.claims.iter().any(|claim| {
            has(&claim.holder.label) || has(&claim.holder.host) || claim.reason.as_deref().is_some_and(has)
        })
}

fn summary(all: usize, found: usize, shown: usize, is_refused: bool) -> String {
    // The script asks for other names while the page is open.
    if is_refused {
        return "<p>This access token does not have the right <code>read</code> for names that begin like this.</p>"
            .to_owned();
    }
    let locks = if found == 1 { "lock" } else { "locks" };
    match (all, found) {
        (0, _) => "<p>Nothing is held or waited for.</p>".to_owned(),
        (_, 0) => "<p>No lock matches the search.</p>".to_owned(),
        _ if shown < found => format!("<p>{shown} of {found} {locks}</p>"),
        _ => format!("<p>{found} {locks}</p>"),
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
        groups.push_str("<li><a href=\"./\" data-key=\"all\">all names</a></li>");
    }
    for (group, count) in counts.iter().take(SHORT) {
        let label = text(group);
        let _ = write!(
            groups,
            "<li><a href=\"./?prefix={}\" data-key=\"{label}\"><bdi>{label}</bdi></a> {count}</li>",
            encoded(group)
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
    format!(
        "<p><a href=\"./?prefix={prefix}&amp;search={search}&amp;after={after}\" data-key=\"next\">Next page</a></p>"
    )
}

fn hot_locks(hot: &[crate::history::Hot]) -> String {
    let columns = ["Lock", "Handoffs a second", "Waiting, median", "Waiting, 99th percentile"];
    let rows = hot.iter().map(|hot| {
        let waited = |index: usize| hot.waited.map_or_else(|| "–".to_owned(), |waited| millis(waited[index]));
        vec![link(hot.name.as_str()), format!("{:.1}", hot.rate), waited(0), waited(1)]
    });
    table("Hot locks of the last minute", &columns, rows)
}

/// Returns a duration that can be short.
fn millis(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{} ms", time.as_millis()) } else { shown(time) }
}

/// Returns the grants for this reader: with the names of their locks, unless all are of one lock.
fn recent(reader: &Caller, grants: &[Grant], with_name: bool) -> String {
    let is_shown = |column: &str| match column {
        "Lock" => with_name,
        "Caller" => reader.is_named(),
        _ => true,
    };
    let all = ["Lock", "Token", "Caller", "Holder", "Reason", "Granted", "Waited", "Held for", "End"];
    let columns: Vec<&str> = all.into_iter().filter(|column| is_shown(column)).collect();
    let rows = grants.iter().map(|grant| {
        let held = |end: u64| millis(Duration::from_micros(end.saturating_sub(grant.since_micros)));
        let (held, how) = match &grant.end {
            None => ("–".to_owned(), "holds"),
            Some(end) if end.is_exact => (held(end.at_micros), end.how.as_str()),
            Some(end) => (format!("up to {}", held(end.at_micros)), end.how.as_str()),
        };
        let caller = grant.caller.as_deref();
        let cells = [
            link(grant.name.as_str()),
            grant.token.to_string(),
            caller.map(named).unwrap_or_default(),
            named(own_label(&grant.holder.label, caller)),
            grant.reason.as_deref().map(named).unwrap_or_default(),
            clock(grant.since_micros),
            grant.waited.map_or_else(|| "–".to_owned(), millis),
            held,
            how.to_owned(),
        ];
        all.iter().zip(cells).filter(|(column, _)| is_shown(column)).map(|(_, cell)| cell).collect()
    });
    table("Recent grants", &columns, rows)
}

/// Returns the runs that the engine keeps.
fn kept(runs: &Runs) -> String {
    let columns = ["Run", "Token", "Holder", "Began", "Took", "Exit code", "End"];
    let all = [("last", &runs.last), ("last good", &runs.good)];
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
        "<form method=\"post\" action=\"doctor\"><button data-key=\"examine\">Examine the engine</button> It takes the lock \
         fencepost/doctor for a moment.</form>",
    );
    doctor
}

/// Returns whether the caller may examine the engine.
pub(crate) fn may_examine(caller: &Caller) -> bool {
    caller.readable("").first().is_some_and(String::is_empty)
}

fn about(service: &Service) -> String {
    let since = service.history.since_micros().map(clock).unwrap_or_default();
    format!(
        "<p><small>Recent grants and hot locks are those that this copy of the service has seen since {since}. It looks at the \
         engine every 0.5 s while a page is open, else every 20 s. It misses shorter grants, unless they were made through this copy. \
         A grant that ended before its lease counts as released, also if its process died.</small></p>"
    )
}
