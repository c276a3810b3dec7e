//! The page of one lock: who held it when, who waits, for how long they waited, and who takes it most.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use fencepost_core::{ClaimInfo, Info, Name};

use crate::history::{Grant, History, Holding, How, micros};
use crate::page::charts::{Bars, bar, drawing, part};
use crate::page::html::{clock, figure, host_of, limit, millis, named, own_label, passing, text, who};
use crate::rights::caller::Caller;
use crate::seen::Seen;
use crate::view::Claim;

/// The most grants that have a row. The strip above them has all that are kept.
const ROWS: usize = 30;
/// The most holders of a time that are drawn above each other: more would be lines.
const LANES: usize = 8;
/// How many microseconds without a watch are not drawn: a copy notes every 10 s that it still watches.
const RESTART: u64 = 11_000_000;
/// From which width on a bar has a gap behind it.
const GAP_FROM: u64 = 6;
/// The most holders that are counted in the list of those who take it most.
const MOST: usize = 10;
/// The upper ends of the groups of waiting times, and their names.
const WAITED: [(Duration, &str); 7] = [
    (Duration::from_millis(10), "under 10 ms"),
    (Duration::from_millis(100), "10 – 100 ms"),
    (Duration::from_secs(1), "0.1 – 1 s"),
    (Duration::from_secs(10), "1 – 10 s"),
    (Duration::from_secs(60), "10 – 60 s"),
    (Duration::from_secs(600), "1 – 10 min"),
    (Duration::MAX, "longer"),
];

/// Returns the grants of a lock, the latest first: those that are kept, and the holders of this look that were granted before this copy of
/// the service watched.
pub(crate) fn with_holders(
    mut grants: Vec<Grant>,
    name: &Name,
    info: Option<&Info>,
    seen: &Seen,
) -> Vec<Grant> {
    let holders = info.into_iter().flat_map(Info::holders);
    let holders = holders.filter_map(|claim| Some(Grant::of(name, claim, claim.token?, seen.at_micros)));
    let unknown: Vec<Grant> =
        holders.filter(|held| grants.iter().all(|grant| grant.token != held.token)).collect();
    grants.extend(unknown);
    grants.sort_by_key(|grant| std::cmp::Reverse(grant.since_micros));
    grants
}

/// Returns the queue, the next one first.
pub(crate) fn queue(info: &Info, at_micros: u64, limit: usize) -> String {
    let count = info.waiters().count();
    if count == 0 {
        return String::new();
    }
    let longest = info.waiters().map(|claim| claim.age.as_secs()).max().unwrap_or(0).max(1);
    let mut queue = format!("<h2>Queue <small>{count} waiting</small></h2><ol class=\"queue\">");
    for (ahead, claim) in info.waiters().take(limit).enumerate() {
        let place = match ahead {
            0 => "next".to_owned(),
            ahead => format!("{ahead} ahead"),
        };
        let _ = write!(
            queue,
            "<li><span>{}</span><span class=\"num\">{place}</span><span class=\"num\">has waited {}</span>{}</li>",
            who(&Claim::from(claim), None, true),
            passing(at_micros / 1_000_000 * 1_000_000, Duration::from_secs(claim.age.as_secs())),
            bar("waits", claim.age.as_secs(), longest)
        );
    }
    queue.push_str("</ol>");
    if count > limit {
        let _ = write!(queue, "<p>and {} more</p>", count - limit);
    }
    queue
}

/// The time that a drawing shows.
struct Scale {
    from: u64,
    to: u64,
}

impl Scale {
    /// The time of these grants until now. Its end moves in steps, so that a page that is open is not drawn anew at each look.
    fn of(grants: &[Grant], now: u64) -> Scale {
        let from = grants.iter().map(arrival).min().unwrap_or(now);
        let step = (now.saturating_sub(from) / 100).max(2_000_000);
        Scale { from, to: now.div_ceil(step) * step }
    }

    fn at(&self, micros: u64) -> u64 {
        part(micros.saturating_sub(self.from), self.to.saturating_sub(self.from))
    }
}

/// Returns when a grant was asked for, as far as that is known.
fn arrival(grant: &Grant) -> u64 {
    let waited = grant.waited.map_or(0, |waited| u64::try_from(waited.as_micros()).unwrap_or(0));
    grant.since_micros.saturating_sub(waited)
}

/// Returns until when a grant certainly held. What is not certain is not drawn.
fn certain_end(grant: &Grant, scale: &Scale) -> u64 {
    grant.end.map_or(scale.to, |end| end.after_micros.max(grant.since_micros))
}

/// Returns the class and the word of its end.
fn outcome(grant: &Grant) -> (&'static str, &'static str) {
    match grant.end.map(|end| end.how) {
        None if grant.is_evicted => ("evicted", "evicted, holds"),
        None => ("holds", "holds"),
        Some(How::Released) => ("released", How::Released.as_str()),
        Some(How::Expired) => ("expired", How::Expired.as_str()),
        Some(How::Evicted) => ("evicted", How::Evicted.as_str()),
        Some(How::Lost) => ("lost", How::Lost.as_str()),
    }
}

/// Returns a bar for each grant that is kept, in one strip. `grants`: the latest first. `watched`: when a
/// service watched, from and until.
pub(crate) fn timeline(grants: &[Grant], now: u64, watched: &[(u64, u64)]) -> String {
    if grants.is_empty() {
        return String::new();
    }
    let heading = format!("<h2>Timeline <small>{}</small></h2>", count(grants.len(), "grant"));
    heading + &strip(grants, &Scale::of(grants, now), watched)
}

/// Returns the latest grants, each with a bar of its own. `grants`: the latest first.
pub(crate) fn recent(reader: &Caller, grants: &[Grant], now: u64) -> String {
    if grants.is_empty() {
        return String::new();
    }
    let mut section = "<h2>Recent grants</h2>".to_owned();
    let shown = &grants[..grants.len().min(ROWS)];
    let scale = Scale::of(shown, now);
    let is_shown = |column: &str| column != "Caller" || reader.is_named();
    let all = ["Granted", "Caller", "Holder", "When", "Waited", "Held for", "End", "Token"];
    let columns = all.iter().filter(|column| is_shown(column));
    let head: String = columns.map(|column| format!("<th scope=\"col\">{column}</th>")).collect();
    let _ = write!(
        section,
        "<table class=\"recent\"><caption class=\"hidden\">Recent grants</caption><thead><tr>{head}</tr></thead><tbody>"
    );
    for grant in shown {
        let (class, end) = outcome(grant);
        let caller = grant.caller.as_deref();
        let mut holder = named(own_label(&grant.holder.label, caller));
        let _ = write!(
            holder,
            " <br><small>pid {} · {}</small>",
            grant.holder.pid,
            text(host_of(&grant.holder.host))
        );
        if let Some(reason) = &grant.reason {
            let _ = write!(holder, " <small class=\"why\">{}</small>", named(reason));
        }
        let cells = [
            clock(grant.since_micros),
            caller.map(named).unwrap_or_default(),
            holder,
            row_bar(grant, class, &scale),
            grant.waited.map_or_else(|| "–".to_owned(), millis),
            held(grant),
            format!(
                "<span class=\"end {class}\">{end}</span>{}",
                grant
                    .end
                    .and_then(|end| end.exit_code)
                    .map_or_else(String::new, |code| format!(" <small>exit code {code}</small>"))
            ),
            grant.token.to_string(),
        ];
        section.push_str("<tr>");
        for (column, cell) in all.iter().zip(cells).filter(|(column, _)| is_shown(column)) {
            let _ = write!(section, "<td data-label=\"{column}\">{cell}</td>");
        }
        section.push_str("</tr>");
    }
    section.push_str("</tbody></table>");
    if grants.len() > ROWS {
        let _ = write!(section, "<p><small>The table has the last {ROWS} of them.</small></p>");
    }
    section
}

/// Returns for how long a grant held, with both limits where its end is not known exactly.
pub(crate) fn held(grant: &Grant) -> String {
    let time = |until: u64| millis(Duration::from_micros(until.saturating_sub(grant.since_micros)));
    match grant.end {
        None => "still held".to_owned(),
        Some(end) if end.is_exact => time(end.at_micros),
        Some(end) if end.after_micros > grant.since_micros => {
            format!("{} to {}", time(end.after_micros), time(end.at_micros))
        }
        Some(end) => format!("up to {}", time(end.at_micros)),
    }
}

fn row_bar(grant: &Grant, class: &str, scale: &Scale) -> String {
    let (mut waits, mut holds) = (Bars::default(), Bars::default());
    let (arrived, since) = (scale.at(arrival(grant)), scale.at(grant.since_micros));
    if since > arrived {
        waits.add(arrived, since, 3, 4);
    }
    holds.add(since, scale.at(certain_end(grant, scale)), 0, 10);
    drawing("bar", 10, &(waits.path("waits") + &holds.path(class)))
}

/// Returns all grants in one drawing, with the time below it.
fn strip(grants: &[Grant], scale: &Scale, watched: &[(u64, u64)]) -> String {
    let kinds = ["holds", "released", "expired", "evicted", "lost"];
    let mut bars: [Bars; 5] = std::array::from_fn(|_| Bars::default());
    let mut lanes: Vec<u64> = Vec::new();
    let mut crowded = 0;
    for grant in grants.iter().rev() {
        let (begin, end) = (grant.since_micros, certain_end(grant, scale));
        let lane = match lanes.iter().position(|until| *until <= begin) {
            Some(lane) => lane,
            None if lanes.len() < LANES => {
                lanes.push(0);
                lanes.len() - 1
            }
            None => {
                crowded += 1;
                continue;
            }
        };
        lanes[lane] = end;
        let (class, _) = outcome(grant);
        let kind = kinds.iter().position(|kind| *kind == class).unwrap_or(0);
        let (begin, end) = (scale.at(begin), scale.at(end));
        // A gap, so that grants that follow each other at once are told apart.
        let gap = u64::from(end.saturating_sub(begin) > GAP_FROM);
        bars[kind].add(begin, end - gap, lane * 14, 12);
    }
    let height = lanes.len() * 14 - 2;
    let (mut gaps, mut until, mut slack) = (Bars::default(), scale.from, 0);
    for (from, to) in watched {
        if *from > until.saturating_add(slack) {
            gaps.add(scale.at(until), scale.at(*from), 0, height);
        }
        until = until.max(*to);
        slack = RESTART;
    }
    let unwatched = gaps.path("unseen");
    let shapes: String = kinds.iter().zip(&bars).map(|(kind, bars)| bars.path(kind)).collect();
    let mut strip = format!(
        "<div class=\"strip\">{}</div><p class=\"axis\">",
        drawing("lanes", height, &format!("{unwatched}{shapes}"))
    );
    for quarter in 0..=4 {
        let at = scale.from + scale.to.saturating_sub(scale.from) / 4 * quarter;
        strip.push_str(&clock(at));
    }
    strip.push_str("</p><p class=\"key\">");
    for (kind, bars) in kinds.iter().zip(&bars) {
        if !bars.path(kind).is_empty() {
            let _ = write!(strip, "<span class=\"end {kind}\">{kind}</span> ");
        }
    }
    if !unwatched.is_empty() {
        strip.push_str("<span class=\"end unseen\">not watched: other grants are not known</span> ");
    }
    if crowded > 0 {
        let _ = write!(strip, "<span>and {crowded} more at the same time</span>");
    }
    strip.push_str("</p>");
    strip
}

/// Returns how long the grants waited.
pub(crate) fn waited(grants: &[Grant]) -> String {
    let mut known: Vec<Duration> = grants.iter().filter_map(|grant| grant.waited).collect();
    // The row of the grant says it of one.
    if known.len() < 2 {
        return String::new();
    }
    known.sort_unstable();
    let at = |percent: usize| known[(known.len() * percent).div_ceil(100).saturating_sub(1)];
    let mut section = format!(
        "<h2>Waiting times</h2><p>Median {}, 99th percentile {}, longest {}.</p><ul class=\"bars\">",
        figure(&millis(at(50))),
        figure(&millis(at(99))),
        figure(&millis(at(100)))
    );
    let mut before = 0;
    let groups = WAITED.map(|(end, name)| {
        let until = known.partition_point(|waited| *waited < end);
        (name, until - std::mem::replace(&mut before, until))
    });
    let most = groups.iter().map(|(_, count)| *count).max().unwrap_or(0);
    // Empty groups outside of those that have grants say nothing.
    let first = groups.iter().position(|(_, count)| *count > 0).unwrap_or(0);
    let last = groups.iter().rposition(|(_, count)| *count > 0).unwrap_or(0);
    for (name, count) in &groups[first..=last] {
        let _ = write!(
            section,
            "<li><span>{name}</span>{}<b>{count}</b></li>",
            bar("waits", *count as u64, most as u64)
        );
    }
    section.push_str("</ul>");
    match grants.len() - known.len() {
        0 => {}
        unknown => {
            let _ = write!(section, "<p><small>Not known of {}.</small></p>", count(unknown, "grant"));
        }
    }
    section
}

/// Returns who takes the lock most.
pub(crate) fn most(grants: &[Grant]) -> String {
    let mut holders: HashMap<(&str, &str), (usize, u64)> = HashMap::new();
    for grant in grants {
        let (times, micros) = holders.entry((&grant.holder.label, &grant.holder.host)).or_default();
        *times += 1;
        *micros += grant.end.map_or(0, |end| end.after_micros.saturating_sub(grant.since_micros));
    }
    if holders.len() < 2 {
        return String::new();
    }
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_unstable_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let most = holders.first().map_or(1, |(_, (times, _))| *times);
    let mut section = "<h2>Who takes it most</h2><ul class=\"bars\">".to_owned();
    for ((label, host), (times, micros)) in holders.iter().take(MOST) {
        let _ = write!(
            section,
            "<li><span><bdi>{}</bdi> <small>{}</small></span>{}<b>{times}×</b><small>held {} in all</small></li>",
            text(label),
            text(host_of(host)),
            bar("released", *times as u64, most as u64),
            figure(&millis(Duration::from_micros(*micros)))
        );
    }
    section.push_str("</ul>");
    if holders.len() > MOST {
        let _ = write!(section, "<p><small>and {} more holders</small></p>", holders.len() - MOST);
    }
    section
}

/// Returns what happens with the lock now and what to do about it, in sentences.
pub(crate) fn situation(
    info: Option<&Info>,
    grants: &[Grant],
    history: &History,
    at_micros: u64,
    may_evict: bool,
) -> String {
    let Some(info) = info else {
        let last = grants.iter().find_map(|grant| Some((grant, grant.end?)));
        return match last {
            None => "<p class=\"state free\">It is free.</p><p>Take it: <code>fencepost run NAME -- PROGRAM</code></p>".to_owned(),
            Some((grant, end)) => format!(
                "<p class=\"state free\">It is free.</p><p>Held last by {} on <bdi>{}</bdi>, {} {}.</p>",
                named(&grant.holder.label),
                text(host_of(&grant.holder.host)),
                outcome(grant).1,
                clock(end.at_micros)
            ),
        };
    };
    let (holders, waiting) = (info.holders().count(), info.waiters().count());
    let mut state = format!("<p class=\"state held\">{}, {waiting} waiting</p>", count(holders, "holder"));
    for claim in info.holders().filter(|claim| Claim::from(*claim).overdue).take(3) {
        let holding = history.holding(&info.name, claim, at_micros);
        state.push_str(&advice(claim, &holding, at_micros, may_evict));
    }
    let blocks = info.holders().next().filter(|_| waiting > 0);
    if let Some((claim, first)) = blocks.zip(info.waiters().next()) {
        let (holds, waits) = (Claim::from(claim), Claim::from(first));
        let _ = write!(
            state,
            "<p><bdi>{}</bdi> on <bdi>{}</bdi> has waited {} because <bdi>{}</bdi> holds the lock: pid {} on the host <bdi>{}</bdi>, \
             since {}.</p>",
            text(&waits.holder),
            text(&waits.host),
            passing(at_micros / 1_000_000 * 1_000_000, Duration::from_secs(first.age.as_secs())),
            text(&holds.holder),
            holds.pid,
            text(&holds.host),
            clock(history.holding(&info.name, claim, at_micros).since_micros),
        );
    }
    state
}

/// Returns what to do about an overdue holder.
pub(crate) fn advice(claim: &ClaimInfo, holding: &Holding, at_micros: u64, may_evict: bool) -> String {
    let holds = Claim::from(claim);
    let (lease, evict) = (lease(claim, holding, at_micros), evict(claim, may_evict));
    format!(
        "<p class=\"advice\"><strong>Overdue:</strong> held since {}, and {} was the limit. The process was to release it by then, so \
         it is stopped or dead, hangs, is cut off from the engine, or ignores the limit.{lease} Look at pid {} on the host \
         <bdi>{}</bdi>. {evict}</p>",
        clock(holding.since_micros),
        claim.max_hold.map_or_else(|| "no time".to_owned(), |time| figure(&limit(time))),
        holds.pid,
        text(&holds.host),
    )
}

/// Says whether the lease of a holder is renewed: the lock of a process that hangs becomes free by itself only if it is not.
fn lease(claim: &ClaimInfo, holding: &Holding, at_micros: u64) -> String {
    let Some(left) = claim.expires_in else { return String::new() };
    let ends = clock(at_micros.saturating_add(micros(left)));
    match holding.renewed_micros {
        Some(renewed) => format!(
            " Its lease was last found renewed at {}, and ends at {ends} unless it is renewed again.",
            clock(renewed)
        ),
        None => format!(
            " Its lease ends at {ends} unless it is renewed. This copy has seen no renewal since {}.",
            clock(holding.watched_micros)
        ),
    }
}

/// Says what to do about a holder, and what an eviction does: the question of the page evicts without `now`.
fn evict(claim: &ClaimInfo, may_evict: bool) -> &'static str {
    match may_evict {
        _ if claim.evicted => {
            "It is evicted. The next waiter gets the lock once the holder has released it or its lease has ended."
        }
        true => {
            "If it must not go on, end the process first, then evict it. Evicting tells the holder and refuses further renewals, but does \
             not stop a process that does not react. The next waiter gets the lock once the holder has released it or its lease has \
             ended. What the process writes after that is refused only where its token is checked."
        }
        false => "If it must not go on, ask somebody with the right <code>evict</code> to evict it.",
    }
}

/// Returns what keeps a late job from its next run, as far as its lock tells, and what to do about that.
pub(crate) fn late_because(
    info: Option<&Info>,
    history: &History,
    at_micros: u64,
    may_evict: bool,
) -> String {
    let Some((info, claim)) = info.and_then(|info| Some((info, info.holders().next()?))) else {
        return "<p class=\"advice\">Nobody holds its lock now, so nothing keeps the job from its next run: look at what starts it, such as \
                cron or a timer.</p>"
            .to_owned();
    };
    let holds = Claim::from(claim);
    format!(
        "<p class=\"advice\"><bdi>{}</bdi> has held its lock since {}, and no other run begins before that ends. Look whether pid {} on the \
         host <bdi>{}</bdi> still works, hangs or is stopped. {}</p>",
        text(&holds.holder),
        clock(history.holding(&info.name, claim, at_micros).since_micros),
        holds.pid,
        text(&holds.host),
        evict(claim, may_evict),
    )
}

pub(crate) fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}
