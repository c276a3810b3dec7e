//! The last runs of a job, and what to say of one that is late.

use std::fmt::Write as _;
use std::time::Duration;

use crate::history::{Grant, micros};
use crate::page::charts::Bars;
use crate::page::html::{ago, clock, figure, limit, millis};

/// The most runs of a strip.
const RUNS: usize = 40;
/// The most missing runs that are drawn for one gap.
const MISSING: u64 = 5;
/// The height of the longest run.
const HIGH: u64 = 40;

/// A column of the strip.
enum Column {
    /// How long it took, and its exit code if that is known.
    Run(u64, Option<i32>),
    Missing,
}

/// Returns a column for each run, the latest on the right: its height is its time, its colour the exit code. Only runs with an exit code,
/// and grants between them, are known to be runs. With `max_age` the runs that are missing have a column, too: a run that failed is not
/// missing. `grants`: the latest first.
pub(crate) fn run_strip(grants: &[Grant], now: u64, max_age: Option<Duration>) -> String {
    let ended = |grant: &&Grant| grant.end.is_some();
    let mut runs: Vec<&Grant> = grants.iter().filter(ended).take(RUNS).collect();
    runs.reverse();
    let Some(first) = runs.iter().position(|grant| exit_code(grant).is_some()) else { return String::new() };
    let mut columns = Vec::new();
    let mut last = None;
    for grant in &runs[first..] {
        let Some(end) = grant.end else { continue };
        push_missing(&mut columns, last, grant.since_micros, max_age);
        columns.push(Column::Run(end.at_micros.saturating_sub(grant.since_micros), end.exit_code));
        last = Some(end.at_micros);
    }
    push_missing(&mut columns, last, now, max_age);
    draw(&columns, runs[first].since_micros)
}

fn exit_code(grant: &Grant) -> Option<i32> {
    grant.end?.exit_code
}

fn push_missing(columns: &mut Vec<Column>, last: Option<u64>, until: u64, max_age: Option<Duration>) {
    let Some((last, age)) = last.zip(max_age) else { return };
    let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX).max(1);
    let missing = until.saturating_sub(last) / age;
    columns.extend((0..missing.min(MISSING)).map(|_| Column::Missing));
}

fn draw(columns: &[Column], since: u64) -> String {
    let longest =
        columns.iter().map(|column| if let Column::Run(took, _) = column { *took } else { 0 }).max();
    let longest = longest.unwrap_or(0).max(1);
    let kinds = ["good", "failed", "unknown", "missing"];
    let mut bars: [(Bars, usize); 4] = Default::default();
    for (at, column) in columns.iter().enumerate() {
        let (kind, high) = match column {
            Column::Run(took, code) => {
                let high = u128::from(*took) * u128::from(HIGH) / u128::from(longest);
                (
                    match code {
                        Some(0) => 0,
                        Some(_) => 1,
                        None => 2,
                    },
                    u64::try_from(high).unwrap_or(HIGH).max(4),
                )
            }
            Column::Missing => (3, HIGH),
        };
        let (begin, high) = (at as u64 * 12, usize::try_from(high).unwrap_or(0));
        bars[kind].0.add(begin, begin + 9, HIGH as usize - high, high);
        bars[kind].1 += 1;
    }
    let shapes: String = kinds.iter().zip(&bars).map(|(kind, (bars, _))| bars.path(kind)).collect();
    let mut strip = format!(
        "<h2>Runs <small>since {}, the longest took {}</small></h2><svg class=\"runs\" viewBox=\"0 0 {} {HIGH}\" aria-hidden=\"true\">\
         {shapes}</svg><p class=\"key\">",
        clock(since),
        figure(&millis(Duration::from_micros(longest))),
        columns.len().max(20) * 12
    );
    let words = ["good", "failed", "exit code not known", "missing"];
    for ((kind, word), (_, count)) in kinds.iter().zip(words).zip(&bars).filter(|(_, (_, count))| *count > 0)
    {
        let _ = write!(strip, "<span class=\"end {kind}\">{count} {word}</span> ");
    }
    strip.push_str("</p>");
    strip
}

/// Says that a job has no good run that is young enough, or nothing. `held_since`: since when its lock is held, unless that is free.
pub(crate) fn late(last_good: Option<u64>, max_age: Duration, now: u64, held_since: Option<u64>) -> String {
    let age = |ended: u64| Duration::from_micros(now.saturating_sub(ended));
    match last_good {
        Some(ended) if age(ended) <= max_age => String::new(),
        Some(ended) => {
            let due = ended.saturating_add(micros(max_age));
            let before = match held_since.is_some_and(|since| since > due) {
                true => {
                    ", before the present holder got the lock, so this holder does not explain the whole delay"
                }
                false => "",
            };
            format!(
                "<p class=\"advice\"><strong>Late:</strong> a good run was due at {}, {}{before}. The last good run ended at {}, and there \
                 should be one every {}.</p>",
                clock(due),
                figure(&ago(Duration::from_micros(now.saturating_sub(due)))),
                clock(ended),
                figure(&limit(max_age))
            )
        }
        None => format!(
            "<p class=\"advice\"><strong>Late:</strong> the engine knows no good run, and there should be one every {}.</p>",
            figure(&limit(max_age))
        ),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{ClaimInfo, HolderInfo, Mode, Name, Token};

    use super::*;
    use crate::history::{End, How};

    const HOUR: u64 = 3_600_000_000;

    fn run(hour: u64, exit_code: Option<i32>) -> Grant {
        let claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), Mode::Exclusive);
        let mut grant = Grant::of(&Name::new("a").unwrap(), &claim, Token::new(hour), hour * HOUR);
        let at_micros = hour * HOUR + HOUR / 4;
        grant.end =
            Some(End { at_micros, after_micros: at_micros, how: How::Released, is_exact: true, exit_code });
        grant
    }

    #[test]
    fn a_missing_run_is_drawn_only_where_an_age_was_given() {
        let grants = [run(9, Some(3)), run(6, Some(0)), run(5, None), run(4, Some(0)), run(1, None)];
        let strip = run_strip(&grants, 11 * HOUR, None);
        for part in ["2 good", "1 failed", "1 exit code not known"] {
            assert!(strip.contains(part), "{part}: {strip}");
        }
        assert!(!strip.contains("missing"), "{strip}");
        // Between the sixth hour and the ninth one is missing, and two more since the one that failed.
        let strip = run_strip(&grants, 14 * HOUR, Some(Duration::from_secs(2 * 3_600)));
        assert!(strip.contains("3 missing"), "{strip}");
        assert_eq!(
            run_strip(&[run(1, None)], 2 * HOUR, Some(Duration::from_secs(1))),
            "",
            "no exit code is known"
        );
    }

    #[test]
    fn a_job_is_late_if_its_last_good_run_is_too_old() {
        let day = Duration::from_secs(86_400);
        assert_eq!(late(Some(HOUR), day, 20 * HOUR, None), "");
        assert!(late(None, day, HOUR, None).contains("knows no good run"));
        // It was due in the hour 25. A holder that came later is not all that delays it.
        let before = "before the present holder got the lock";
        for (since, is_later) in [(None, false), (Some(24 * HOUR), false), (Some(26 * HOUR), true)] {
            let late = late(Some(HOUR), day, 27 * HOUR + HOUR / 30, since);
            for part in
                ["was due at <time datetime=\"1970-01-02T01:00:00Z\">", ">2 h 2 min ago<", "ended at <time"]
            {
                assert!(late.contains(part), "{part}: {late}");
            }
            assert_eq!(late.contains(before), is_later, "{since:?}: {late}");
        }
    }
}
