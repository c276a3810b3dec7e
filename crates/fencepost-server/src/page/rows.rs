//! The rows of the table of locks.

use std::fmt::Write as _;

use fencepost_core::{ClaimInfo, Info, Name};

use crate::changes::differ;
use crate::history::{History, RENEWED};
use crate::page::html::{self, encoded, escaped, left, link, named, passing, text, who};
use crate::page::timeline::{advice, late_because};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::seen::Seen;
use crate::view::Claim;

/// The columns of a holder.
const HOLDER: [&str; 4] = ["Caller", "Holder", "Held for", "Lease left"];
/// The most holders of a lock that are shown.
const HOLDERS: usize = 20;

/// Returns whether the rows of a lock are different, apart from times that pass: a renewed lease is different.
pub(crate) fn is_changed(before: (&Info, &Seen), now: (&Info, &Seen)) -> bool {
    let caller = |(info, seen): (&Info, &Seen), claim: &ClaimInfo| {
        seen.caller(&info.name, claim.token).map(str::to_owned)
    };
    let ends = |claim: &ClaimInfo, at: u64| claim.expires_in.map(|left| at + left.as_micros() as u64);
    let is_moved = |(before_claim, claim): (&ClaimInfo, &ClaimInfo)| {
        let ends = (ends(before_claim, before.1.at_micros), ends(claim, now.1.at_micros));
        let is_renewed = match ends {
            (Some(earlier), Some(later)) => earlier.abs_diff(later) > RENEWED,
            (earlier, later) => earlier.is_some() != later.is_some(),
        };
        is_renewed
            || is_overdue(before_claim) != is_overdue(claim)
            || before_claim.reason != claim.reason
            || before_claim.detached != claim.detached
            || caller(before, before_claim) != caller(now, claim)
    };
    differ(before.0, now.0) || before.0.claims.iter().zip(&now.0.claims).any(is_moved)
}

/// Returns whether a holder is overdue: a process, also one that extends its lease through the service.
pub(crate) fn is_overdue(claim: &ClaimInfo) -> bool {
    Claim::from(claim).overdue
}

/// Returns the columns of a holder that this reader sees.
fn columns(reader: &Caller) -> &'static [&'static str] {
    if reader.is_named() { &HOLDER } else { &HOLDER[1..] }
}

/// Returns the head of the table.
pub(crate) fn head(reader: &Caller) -> String {
    let columns = ["Lock"].iter().chain(columns(reader)).chain(&["Queue"]);
    let columns: String = columns.map(|column| format!("<th scope=\"col\">{column}</th>")).collect();
    format!("<thead><tr>{columns}<th scope=\"col\"><span class=\"hidden\">Actions</span></th></tr></thead>")
}

/// Returns the rows of a lock: one for each holder, or one if it is only waited for. `queue`: the most waiters that are shown. Without
/// `queue` the lock has a page of its own, which shows more: the queue, tokens and modes.
pub(crate) fn rows(reader: &Caller, info: &Info, seen: &Seen, queue: Option<usize>) -> String {
    let at_micros = seen.at_micros;
    let holders: Vec<&ClaimInfo> = info.holders().collect();
    let name = info.name.as_str();
    let span = match holders.len().clamp(1, HOLDERS) {
        1 => String::new(),
        span => format!(" rowspan=\"{span}\""),
    };
    let mut rows = format!("<tbody data-lock=\"{}\">", escaped(name));
    let head = format!("<th scope=\"rowgroup\"{span}>{}</th>", link(name));
    let waiting = format!(
        "<td data-label=\"Queue\"{span}>{}{}</td>",
        waiters(info, at_micros, queue),
        match holders.len().saturating_sub(HOLDERS) {
            0 => String::new(),
            more => format!("<p>and {more} more holders</p>"),
        }
    );
    if holders.is_empty() {
        let columns = columns(reader).len();
        let _ = write!(
            rows,
            "<tr>{head}<td colspan=\"{columns}\" data-label=\"Holder\">–</td>{waiting}<td></td></tr>"
        );
    }
    let may_evict = reader.may(Verb::Evict, &info.name);
    for (index, claim) in holders.into_iter().take(HOLDERS).enumerate() {
        let (head, waiting) = if index == 0 { (&*head, &*waiting) } else { ("", "") };
        let action = if may_evict { action(info, claim) } else { String::new() };
        let _ = write!(
            rows,
            "<tr{}>{head}{}{waiting}<td>{action}</td></tr>",
            if is_overdue(claim) { " class=\"overdue\"" } else { "" },
            cells(reader, claim, seen.caller(&info.name, claim.token), at_micros, queue.is_none())
        );
    }
    rows.push_str("</tbody>");
    rows
}

fn cells(
    reader: &Caller,
    claim: &ClaimInfo,
    caller: Option<&str>,
    at_micros: u64,
    with_token: bool,
) -> String {
    let mut held = passing(at_micros, claim.age);
    if claim.from_arrival {
        held.insert_str(0, "up to ");
    }
    let seen = Claim::from(claim);
    for (_, word) in [(seen.overdue, "overdue"), (seen.evicted, "evicted")].iter().filter(|(is_it, _)| *is_it)
    {
        let _ = write!(held, " <strong>{word}</strong>");
    }
    if let Some(limit) = claim.max_hold {
        let _ = write!(held, " <small>limit {}</small>", html::limit(limit));
    }
    let mut holder = who(&seen, caller, with_token);
    if let Some(reason) = &claim.reason {
        let _ = write!(holder, " <small class=\"why\">{}</small>", named(reason));
    }
    if let Some(token) = seen.token.filter(|_| with_token) {
        let _ = write!(holder, " <small>token <code>{token}</code></small>");
    }
    let cells = [
        caller.map(named).unwrap_or_default(),
        holder,
        held,
        claim.expires_in.map_or_else(|| "–".to_owned(), |time| left(at_micros, time, seen.token)),
    ];
    let columns = columns(reader);
    let cells = cells.iter().skip(HOLDER.len() - columns.len()).zip(columns);
    cells.map(|(cell, column)| format!("<td data-label=\"{column}\">{cell}</td>")).collect()
}

fn waiters(info: &Info, at_micros: u64, shown: Option<usize>) -> String {
    let count = info.waiters().count();
    if count == 0 {
        return "–".to_owned();
    }
    let Some(shown) = shown else { return format!("<b>{count} waiting</b>") };
    let mut queue =
        format!("<details data-key=\"waiters\"><summary data-key=\"queue\">{count} waiting</summary><ol>");
    for claim in info.waiters().take(shown) {
        let waits = passing(at_micros, claim.age);
        let _ = write!(
            queue,
            "<li>{} <span class=\"num\">{waits}</span></li>",
            who(&Claim::from(claim), None, false)
        );
    }
    queue.push_str("</ol>");
    if count > shown {
        let _ = write!(queue, "<p>and {} more</p>", count - shown);
    }
    queue.push_str("</details>");
    queue
}

/// Returns the link to the question whether to evict a holder.
fn action(info: &Info, claim: &ClaimInfo) -> String {
    let Some(token) = claim.token.filter(|_| !claim.evicted) else { return String::new() };
    let name = info.name.as_str();
    format!(
        "<a class=\"evict\" href=\"evict?name={}&amp;token={token}\" aria-label=\"evict from {}\">Evict</a>",
        encoded(name),
        text(name)
    )
}

/// A job that has no good run as young as it should have.
pub(crate) struct LateJob<'a> {
    pub(crate) name: &'a Name,
    /// HTML that says how late it is.
    pub(crate) words: String,
    /// Its lock, unless that is free.
    pub(crate) info: Option<&'a Info>,
}

/// Returns the line about a holder that needs attention: its lock, who it is, who waits, and the link to evict it.
fn line(reader: &Caller, info: &Info, claim: &ClaimInfo) -> String {
    let waiting = match info.waiters().count() {
        0 => String::new(),
        waiting => format!(
            "<span class=\"num\">{waiting} waiting</span> {}",
            info.waiters().next().map_or_else(String::new, |next| format!(
                "<span>{} {}</span>",
                named(&next.holder.label),
                if waiting == 1 { "waits for it" } else { "is next" }
            ))
        ),
    };
    let may_evict = reader.may(Verb::Evict, &info.name);
    format!(
        "<div>{} <span>{}</span> {waiting} {}</div>",
        link(info.name.as_str()),
        who(&Claim::from(claim), None, false),
        if may_evict { action(info, claim) } else { String::new() },
    )
}

/// Returns the late jobs, the overdue holders and the long queues of the locks that are shown, with what to do about each. A late job whose
/// holder is overdue is one of them, because one thing is to be done about both.
pub(crate) fn attention<'a>(
    reader: &Caller,
    locks: impl Iterator<Item = &'a Info> + Clone,
    late: &[LateJob<'_>],
    history: &History,
    at_micros: u64,
    limit: usize,
) -> String {
    let holders = locks.clone().flat_map(|info| info.holders().map(move |claim| (info, claim)));
    let mut overdue: Vec<_> = holders.filter(|(_, claim)| is_overdue(claim)).collect();
    let job_of = |info: &Info| late.iter().find(|job| *job.name == info.name);
    overdue.sort_by_key(|(info, _)| job_of(info).is_none());
    let is_apart = |job: &&LateJob<'_>| overdue.iter().all(|(info, _)| *job.name != info.name);
    let apart: Vec<_> = late.iter().filter(is_apart).collect();
    let mut queues: Vec<(usize, &Info)> = locks.map(|info| (info.waiters().count(), info)).collect();
    queues.retain(|(waiting, _)| *waiting >= Info::LONG_QUEUE);
    queues.sort_by_key(|(waiting, _)| std::cmp::Reverse(*waiting));
    if overdue.is_empty() && queues.is_empty() && late.is_empty() {
        return String::new();
    }
    let mut section = "<h2>Needs attention</h2><ul class=\"attention\">".to_owned();
    for LateJob { name, words, info } in apart.iter().take(limit) {
        let head = match info.and_then(|info| Some((info, info.holders().next()?))) {
            Some((info, claim)) => line(reader, info, claim),
            None => format!("<div>{}</div>", link(name.as_str())),
        };
        let because = late_because(*info, history, at_micros, reader.may(Verb::Evict, name));
        let _ = write!(section, "<li class=\"bad\">{head}{words}{because}</li>");
    }
    for (info, claim) in overdue.iter().take(limit) {
        let _ = write!(
            section,
            "<li class=\"bad\">{}{}{}</li>",
            line(reader, info, claim),
            job_of(info).map_or("", |job| &*job.words),
            advice(
                claim,
                &history.holding(&info.name, claim, at_micros),
                at_micros,
                reader.may(Verb::Evict, &info.name)
            ),
        );
    }
    for (waiting, info) in queues.iter().take(limit) {
        let _ = write!(section, "<li class=\"long\"><div>{}", link(info.name.as_str()));
        let _ = write!(section, "<strong class=\"num\">{waiting} waiting</strong>");
        if let Some(claim) = info.holders().next() {
            let _ = write!(section, "<span>held by {}</span>", who(&Claim::from(claim), None, false));
        }
        section.push_str("</div></li>");
    }
    section.push_str("</ul>");
    match [overdue.len(), queues.len(), apart.len()]
        .iter()
        .map(|count| count.saturating_sub(limit))
        .sum::<usize>()
    {
        0 => {}
        more => {
            let _ = write!(section, "<p>and {more} more</p>");
        }
    }
    section
}
