//! Parts of HTML. Each text that others chose passes here.

use std::fmt::{Display, Write as _};
use std::time::{Duration, SystemTime};

use fencepost_core::visible;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::process::BY_SERVICE;
use crate::view::{self, Claim};

/// Returns an untrusted text for HTML. Characters that hide or turn text are shown as such.
pub(crate) fn text(text: &str) -> String {
    escaped(&visible(text))
}

/// Returns an untrusted text as a part of a line.
pub(crate) fn named(part: &str) -> String {
    format!("<bdi>{}</bdi>", text(part))
}

/// Returns a text for HTML as it is.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Returns a text for the query of a link.
pub(crate) fn encoded(part: &str) -> impl Display {
    utf8_percent_encode(part, NON_ALPHANUMERIC)
}

/// Returns a link to the page of a lock.
pub(crate) fn link(name: &str) -> String {
    format!("<a href=\"./?name={}\"><bdi>{}</bdi></a>", encoded(name), text(name))
}

/// Returns a holder or waiter: its label, and apart from it the process, the host and the mode. `caller`: the caller that is shown beside
/// it. A lock is exclusive unless its mode is shown, so lists leave that out.
pub(crate) fn who(claim: &Claim, caller: Option<&str>, with_mode: bool) -> String {
    let lease = if claim.detached { "lease of " } else { "" };
    let (label, host) = (text(own_label(&claim.holder, caller)), text(&claim.host));
    let mode = match (claim.mode, claim.permits.zip(claim.permits_of)) {
        (_, Some((n, of))) => format!(" · {n} of {of} permits"),
        ("exclusive", None) if !with_mode => String::new(),
        (mode, None) => format!(" · {mode}"),
    };
    format!(
        "<bdi>{label}</bdi> <small class=\"id\">{lease}pid {} · <bdi>{host}</bdi>{mode}</small>",
        claim.pid
    )
}

/// Returns the name of the host of a holder, without the mark of a process whose lease the service extends.
pub(crate) fn host_of(host: &str) -> &str {
    host.strip_suffix(BY_SERVICE).unwrap_or(host)
}

/// Returns the label without its caller, which `Caller::label` put before it.
pub(crate) fn own_label<'a>(label: &'a str, caller: Option<&str>) -> &'a str {
    let own = caller.and_then(|caller| label.strip_prefix(caller)?.strip_prefix(": "));
    own.unwrap_or(label)
}

/// Returns a time that passes, for the script to count on.
pub(crate) fn passing(at_micros: u64, age: Duration) -> String {
    let since = (at_micros / 1000).saturating_sub(view::millis(age));
    format!("<span data-since=\"{since}\">{}</span>", shown(age))
}

/// Returns the time that is left of a lease. The script shows a bar that runs down.
pub(crate) fn left(at_micros: u64, left: Duration, token: Option<u64>) -> String {
    let until = at_micros / 1000 + view::millis(left);
    let token = token.unwrap_or_default();
    format!("<span data-until=\"{until}\" data-token=\"{token}\">{}</span>", shown(left))
}

/// Returns a duration for people. The script does the same.
pub(crate) fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..172_800 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Returns a limit, which is most often a whole number of a unit.
pub(crate) fn limit(time: Duration) -> String {
    let text = shown(time);
    match text.rsplit_once(" 0 ") {
        Some((whole, _)) => whole.to_owned(),
        None => text.replace(".0 s", " s"),
    }
}

/// Returns how long ago something was, to the minute, so that a page that is open does not change each second.
pub(crate) fn ago(time: Duration) -> String {
    match time.as_secs() / 60 {
        0 => "less than 1 min ago".to_owned(),
        minutes => format!("{} ago", limit(Duration::from_secs(minutes * 60))),
    }
}

/// Returns a figure with its unit as a part of a sentence, which no line breaks.
pub(crate) fn figure(figure: &str) -> String {
    format!("<span class=\"num\">{figure}</span>")
}

/// Returns a number of things, with its thousands set apart.
pub(crate) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a duration that can be short.
pub(crate) fn millis(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{} ms", time.as_millis()) } else { shown(time) }
}

/// Returns a time of the wall clock. The script shows it in the zone of the reader. The head of the page names the zone.
pub(crate) fn clock(micros: u64) -> String {
    let time = rfc3339(micros);
    format!("<time datetime=\"{time}\">{}</time>", date_and_time(micros))
}

/// Returns the date and the time in UTC.
pub(crate) fn date_and_time(micros: u64) -> String {
    rfc3339(micros).replace('T', " ").trim_end_matches('Z').to_owned()
}

fn rfc3339(micros: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Returns a table, or nothing without rows.
pub(crate) fn table(caption: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut body = String::new();
    for cells in rows {
        body.push_str("<tr>");
        for (cell, column) in cells.iter().zip(columns) {
            let _ = write!(body, "<td data-label=\"{column}\">{cell}</td>");
        }
        body.push_str("</tr>");
    }
    if body.is_empty() {
        return body;
    }
    let head: String = columns.iter().map(|column| format!("<th scope=\"col\">{column}</th>")).collect();
    format!("<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_texts_are_texts() {
        assert_eq!(text("<b onclick='x'>&\"</b>"), "&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;&lt;/b&gt;");
        assert!(!text("a\u{202e}b").contains('\u{202e}'));
    }

    #[test]
    fn a_label_is_shown_without_the_caller_beside_it() {
        for (label, caller, own) in [
            ("ci: job 7", Some("ci"), "job 7"),
            ("ci: job 7", None, "ci: job 7"),
            ("ci", Some("ci"), "ci"),
            ("ci-2: job 7", Some("ci"), "ci-2: job 7"),
        ] {
            assert_eq!(own_label(label, caller), own);
        }
    }

    #[test]
    fn durations_are_short() {
        let shown = |seconds| shown(Duration::from_secs(seconds));
        assert_eq!([shown(7), shown(125), shown(7_500)], ["7.0 s", "2 min 5 s", "2 h 5 min"]);
        assert_eq!(shown(180_000), "2 d 2 h");
        let limit = |seconds| limit(Duration::from_secs(seconds));
        assert_eq!([limit(7), limit(120), limit(3_600), limit(90_000)], ["7 s", "2 min", "1 h", "25 h"]);
        assert_eq!([limit(5_400), limit(172_800)], ["1 h 30 min", "2 d"]);
        let ago = |seconds| ago(Duration::from_secs(seconds));
        assert_eq!([ago(59), ago(125), ago(3_725)], ["less than 1 min ago", "2 min ago", "1 h 2 min ago"]);
    }

    #[test]
    fn large_numbers_have_their_thousands_set_apart() {
        assert_eq!(
            [0, 999, 1_000, 10_000, 1_234_567].map(number),
            ["0", "999", "1,000", "10,000", "1,234,567"]
        );
        assert!(clock(1_999_999).contains(">1970-01-01 00:00:01<"), "a second that is not over is cut off");
    }
}
