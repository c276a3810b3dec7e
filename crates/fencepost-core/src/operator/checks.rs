//! Checks that the examinations of several engines share.

use crate::operator::report::{Finding, Severity};

/// Returns the first three numbers of a version: `3.5.9-83df` is `(3, 5, 9)`. A missing number is 0.
pub fn version(text: &str) -> (u32, u32, u32) {
    let mut parts = text.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

/// Judges how many of `count` voting `servers` may fail. `away`: how many of them do not reply. `few`: how much it matters that none
/// may fail.
pub fn majority(servers: &str, count: usize, away: usize, few: Severity) -> Finding {
    let says = format!("{count} {servers}, of which {} may fail", count.saturating_sub(1) / 2);
    let advice = "run three or five";
    match count {
        0 | 1 => {
            let says = "one server: while it is down no lock is granted or renewed";
            Finding::new(few, "quorum", says).advice(advice)
        }
        2 => Finding::new(few, "quorum", format!("two {servers}, of which none may fail")).advice(advice),
        _ if away > 0 => Finding::warning("quorum", format!("{says}, and {away} do not reply"))
            .advice("start them again: without a majority no lock is granted or renewed"),
        _ if count.is_multiple_of(2) => {
            Finding::note("quorum", format!("{says}, no more than of {}", count - 1))
        }
        _ => Finding::ok("quorum", says),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_their_ends() {
        for (text, numbers) in [
            ("3.5.9", (3, 5, 9)),
            ("3.8.0-${mvngit.commit.id}", (3, 8, 0)),
            ("3.6.0+git", (3, 6, 0)),
            ("3.10", (3, 10, 0)),
            ("", (0, 0, 0)),
            ("unknown", (0, 0, 0)),
        ] {
            assert_eq!(version(text), numbers, "{text}");
        }
    }

    #[test]
    fn a_majority_is_as_it_should_be_only_while_all_servers_reply() {
        for (count, away, few, severity) in [
            (0, 0, Severity::Warning, Severity::Warning),
            (1, 0, Severity::Note, Severity::Note),
            (2, 0, Severity::Warning, Severity::Warning),
            (3, 0, Severity::Warning, Severity::Ok),
            (3, 1, Severity::Note, Severity::Warning),
            (4, 0, Severity::Warning, Severity::Note),
            (4, 1, Severity::Note, Severity::Warning),
            (5, 1, Severity::Warning, Severity::Warning),
        ] {
            assert_eq!(
                majority("members", count, away, few).severity,
                severity,
                "{count} of which {away} are away"
            );
        }
    }
}
