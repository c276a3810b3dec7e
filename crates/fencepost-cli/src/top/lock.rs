//! One lock in lines: who holds it, who waits, and how its last runs ended.

use std::time::Duration;

use fencepost_check::utc;
use fencepost_core::{ClaimInfo, Info};

use crate::runs;
use crate::show::{age, columns, fit, visible};
use crate::verbs::{queue, show};

/// A line, as it is to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    Heading(String),
    Head(String),
    Plain(String),
    /// It needs attention.
    Bad(String),
}

/// The columns of the queue that may be cut: the reason before the waiter.
const CUT: [(&str, usize); 2] = [("REASON", 8), ("WHO", 12)];

/// Returns the lines of a lock on a terminal of this width. `info`: `None` if nobody holds it or waits for it, and the engine was not asked
/// for more yet. `not_kept`: why the engine keeps no runs.
pub(crate) fn lines(info: Option<&Info>, not_kept: Option<&str>, width: u16) -> Vec<Line> {
    let Some(info) = info else { return vec![Line::Plain("free".to_owned())] };
    let width = usize::from(width.max(20));
    let mut lines = Vec::new();
    if info.holders().next().is_none() {
        lines.push(Line::Plain("free".to_owned()));
    }
    for claim in info.holders() {
        let since = utc(Duration::from_micros(claim.since_micros));
        let since = if claim.since_micros > 0 { format!("; since {since}") } else { String::new() };
        let text = format!("{}{since}", show::holder(claim));
        lines.extend(wrapped(&text, width).into_iter().map(Line::Plain));
        if claim.is_overdue() {
            lines.extend(wrapped(&advice(info, claim), width).into_iter().map(Line::Bad));
        }
    }
    let mut rows = queue::rows(info);
    if !rows.is_empty() {
        lines.push(Line::Plain(String::new()));
        lines.push(Line::Heading(format!("Queue: {} waiting, the next one first", rows.len())));
        fit(&queue::HEAD, &mut rows, width, &CUT);
        let mut table = columns(&queue::HEAD, &rows).into_iter();
        lines.extend(table.next().map(Line::Head));
        lines.extend(table.map(Line::Plain));
    }
    let runs = runs::lines(info.runs.as_ref(), not_kept);
    if !runs.is_empty() {
        lines.push(Line::Plain(String::new()));
        lines.push(Line::Heading("Runs".to_owned()));
        lines.extend(runs.iter().flat_map(|run| wrapped(run.trim_start(), width)).map(Line::Plain));
    }
    lines
}

/// Returns what to do about an overdue holder.
fn advice(info: &Info, claim: &ClaimInfo) -> String {
    let limit = claim.max_hold.map_or_else(String::new, age);
    let token = claim.token.map_or_else(String::new, |token| token.to_string());
    format!(
        "Overdue: its limit was {limit}. The process was to release it by then, so it is stopped or dead, hangs, is cut off from the \
         engine, or ignores the limit. Look at pid {} on the host {}. If it must not go on, end the process, then: fencepost evict '{}' \
         --token {token}",
        claim.holder.pid,
        visible(&claim.holder.host),
        visible(info.name.as_str()),
    )
}

/// Breaks a text between words into lines of at most this width; a longer word is broken inside. The second line on is indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        while let Some(line) = lines.last_mut() {
            let used = line.chars().count();
            let gap = usize::from(!line.trim_start().is_empty());
            if used + gap + word.len() <= width {
                line.extend(" ".chars().take(gap));
                line.extend(word);
                break;
            }
            if gap == 0 {
                line.extend(word.drain(..width - used));
            }
            lines.push("  ".to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_words_and_long_texts_are_broken() {
        assert_eq!(wrapped("one two three", 20), ["one two three"]);
        assert_eq!(wrapped("one two three", 8), ["one two", "  three"]);
        assert_eq!(wrapped("0123456789abcdef x", 8), ["01234567", "  89abcd", "  ef x"]);
    }
}
