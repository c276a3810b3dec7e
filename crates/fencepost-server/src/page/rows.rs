//! The rows of the table of locks.

use std::fmt::Write as _;
use std::time::Duration;

use fencepost_core::{ClaimInfo, Info, Mode};

use crate::changes::differ;
use crate::page::html::{encoded, escaped, holder, left, link, passing, shown, table, text};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::view::Claim;

/// The head of the table.
pub(crate) const HEAD: &str = "<thead><tr><th scope=\"col\">Lock</th><th scope=\"col\">Holder</th><th scope=\"col\">Held for</th>\
     <th scope=\"col\">Lease left</th><th scope=\"col\">Token</th><th scope=\"col\">Reason</th><th scope=\"col\">Queue</th>\
     <th scope=\"col\"><span class=\"hidden\">Actions</span></th></tr></thead>";
/// By how much the end of a lease moves when it is renewed, at least.
const RENEWED: u64 = 250_000;
/// The most holders of a lock that are shown.
const HOLDERS: usize = 20;

/// Returns whether the rows of a lock are different, apart from times that pass: a renewed lease is different.
pub(crate) fn is_changed(before: (&Info, u64), now: (&Info, u64)) -> bool {
    let ends = |claim: &ClaimInfo, at: u64| claim.expires_in.map(|left| at + left.as_micros() as u64);
    let is_moved = |(before_claim, claim): (&ClaimInfo, &ClaimInfo)| {
        let ends = (ends(before_claim, before.1), ends(claim, now.1));
        let is_renewed = match ends {
            (Some(earlier), Some(later)) => earlier.abs_diff(later) > RENEWED,
            (earlier, later) => earlier.is_some() != later.is_some(),
        };
        is_renewed
            || before_claim.is_overdue() != claim.is_overdue()
            || before_claim.reason != claim.reason
            || before_claim.detached != claim.detached
    };
    differ(before.0, now.0) || before.0.claims.iter().zip(&now.0.claims).any(is_moved)
}

/// Returns the rows of a lock: one for each holder, or one if it is only waited for. `queue`: the most waiters that are shown.
pub(crate) fn rows(caller: &Caller, info: &Info, at_micros: u64, queue: usize) -> String {
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
        let _ =
            write!(rows, "<tr>{head}<td colspan=\"5\" data-label=\"Holder\">–</td>{waiting}<td></td></tr>");
    }
    let may_evict = caller.may(Verb::Evict, &info.name);
    for (index, claim) in holders.into_iter().take(HOLDERS).enumerate() {
        let (head, waiting) = if index == 0 { (&*head, &*waiting) } else { ("", "") };
        let action = if may_evict { action(info, claim) } else { String::new() };
        let _ = write!(
            rows,
            "<tr{}>{head}{}{waiting}<td>{action}</td></tr>",
            if claim.is_overdue() { " class=\"overdue\"" } else { "" },
            cells(claim, at_micros)
        );
    }
    rows.push_str("</tbody>");
    rows
}

fn cells(claim: &ClaimInfo, at_micros: u64) -> String {
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
    format!(
        "<td data-label=\"Holder\">{}{mode}</td><td data-label=\"Held for\">{held}</td><td data-label=\"Lease left\">{}</td>\
         <td data-label=\"Token\">{}</td><td data-label=\"Reason\"><bdi>{}</bdi></td>",
        holder(&seen),
        claim.expires_in.map_or_else(|| "–".to_owned(), |time| left(at_micros, time, seen.token)),
        seen.token.map_or_else(|| "–".to_owned(), |token| token.to_string()),
        claim.reason.as_deref().map(text).unwrap_or_default(),
    )
}

fn waiters(info: &Info, at_micros: u64, shown: usize) -> String {
    let count = info.waiters().count();
    if count == 0 {
        return "–".to_owned();
    }
    let mut queue = format!("<details><summary data-key=\"queue\">{count} waiting</summary><ol>");
    for claim in info.waiters().take(shown) {
        let waits = passing(at_micros, claim.age);
        let _ = write!(queue, "<li>{} for {waits}</li>", holder(&Claim::from(claim)));
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
        "<a href=\"/evict?name={}&amp;token={token}\" data-key=\"evict-{token}\" aria-label=\"evict from {}\">evict</a>",
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
        vec![link(info.name.as_str()), holder(&Claim::from(claim)), held, shown(limit)]
    });
    table("Overdue holders", &["Lock", "Holder", "Held for", "Limit"], rows)
}
