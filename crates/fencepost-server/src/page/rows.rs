//! The rows of the table of locks.

use std::fmt::Write as _;
use std::time::Duration;

use fencepost_core::{ClaimInfo, Info, Mode};

use crate::changes::differ;
use crate::page::html::{encoded, escaped, holder, left, link, named, passing, shown, table, text};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::seen::Seen;
use crate::view::Claim;

/// The columns of a holder.
const HOLDER: [&str; 6] = ["Caller", "Holder", "Held for", "Lease left", "Token", "Reason"];
/// By how much the end of a lease moves when it is renewed, at least.
const RENEWED: u64 = 250_000;
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
            || before_claim.is_overdue() != claim.is_overdue()
            || before_claim.reason != claim.reason
            || before_claim.detached != claim.detached
            || caller(before, before_claim) != caller(now, claim)
    };
    differ(before.0, now.0) || before.0.claims.iter().zip(&now.0.claims).any(is_moved)
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

/// Returns the rows of a lock: one for each holder, or one if it is only waited for. `queue`: the most waiters that are shown.
pub(crate) fn rows(reader: &Caller, info: &Info, seen: &Seen, queue: usize) -> String {
    let at_micros = seen.at_micros;
    let holders: Vec<&ClaimInfo> = info.holders().collect();
    let name = info.name.as_str();
    let span = holders.len().clamp(1, HOLDERS);
    let mut rows = format!("<tbody data-lock=\"{}\">", escaped(name));
    let head = format!("<th scope=\"rowgroup\" rowspan=\"{span}\">{}</th>", link(name));
    let waiting = format!(
        "<td data-label=\"Queue\" rowspan=\"{span}\">{}{}</td>",
        waiters(info, at_micros, queue),
        match holders.len().saturating_sub(HOLDERS) {
            0 => String::new(),
            more => format!("<p>and {more} more holders</p>"),
        }
    );
    if holders.is_empty() {
        let span = columns(reader).len();
        let _ = write!(
            rows,
            "<tr>{head}<td colspan=\"{span}\" data-label=\"Holder\">–</td>{waiting}<td></td></tr>"
        );
    }
    let may_evict = reader.may(Verb::Evict, &info.name);
    for (index, claim) in holders.into_iter().take(HOLDERS).enumerate() {
        let (head, waiting) = if index == 0 { (&*head, &*waiting) } else { ("", "") };
        let action = if may_evict { action(info, claim) } else { String::new() };
        let _ = write!(
            rows,
            "<tr{}>{head}{}{waiting}<td>{action}</td></tr>",
            if claim.is_overdue() { " class=\"overdue\"" } else { "" },
            cells(reader, claim, seen.caller(&info.name, claim.token), at_micros)
        );
    }
    rows.push_str("</tbody>");
    rows
}

fn cells(reader: &Caller, claim: &ClaimInfo, caller: Option<&str>, at_micros: u64) -> String {
    let mut held = passing(at_micros, claim.age);
    if claim.from_arrival {
        held.insert_str(0, "up to ");
    }
    let badge = |held: &mut String, word: &str| {
        let _ = write!(held, " <strong>{word}</strong>");
    };
    if claim.is_overdue() {
        badge(&mut held, "overdue");
    }
    if claim.evicted {
        badge(&mut held, "evicted");
    }
    if let Some(limit) = claim.max_hold {
        let _ = write!(held, " <small>limit {}</small>", shown(limit));
    }
    let seen = Claim::from(claim);
    let mode = match claim.mode {
        Mode::Exclusive => String::new(),
        mode => format!(" <small>{mode}</small>"),
    };
    let cells = [
        caller.map(named).unwrap_or_default(),
        format!("{}{mode}", holder(&seen, caller)),
        held,
        claim.expires_in.map_or_else(|| "–".to_owned(), |time| left(at_micros, time, seen.token)),
        seen.token.map_or_else(|| "–".to_owned(), |token| token.to_string()),
        claim.reason.as_deref().map(named).unwrap_or_default(),
    ];
    let columns = columns(reader);
    let cells = cells.iter().skip(HOLDER.len() - columns.len()).zip(columns);
    cells.map(|(cell, column)| format!("<td data-label=\"{column}\">{cell}</td>")).collect()
}

fn waiters(info: &Info, at_micros: u64, shown: usize) -> String {
    let count = info.waiters().count();
    if count == 0 {
        return "–".to_owned();
    }
    let mut queue = format!("<details><summary data-key=\"queue\">{count} waiting</summary><ol>");
    for claim in info.waiters().take(shown) {
        let waits = passing(at_micros, claim.age);
        let _ = write!(queue, "<li>{} for {waits}</li>", holder(&Claim::from(claim), None));
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
        "<a href=\"evict?name={}&amp;token={token}\" data-key=\"evict-{token}\" aria-label=\"evict from {}\">evict</a>",
        encoded(name),
        text(name)
    )
}

/// Returns the overdue holders of the locks that are shown.
pub(crate) fn overdue<'a>(locks: impl Iterator<Item = &'a Info>, at_micros: u64, limit: usize) -> String {
    let overdue = locks.flat_map(|info| info.holders().map(move |claim| (info, claim)));
    let overdue = overdue.filter(|(_, claim)| claim.is_overdue()).take(limit);
    let rows = overdue.map(|(info, claim)| {
        let limit = claim.max_hold.unwrap_or(Duration::ZERO);
        let held = passing(at_micros, claim.age);
        vec![link(info.name.as_str()), holder(&Claim::from(claim), None), held, shown(limit)]
    });
    table("Overdue holders", &["Lock", "Holder", "Held for", "Limit"], rows)
}
