//! Durations on the command line: `30s`, `1m30s`, `500ms`, `2h`.

use std::time::Duration;

/// A duration as a person reads it: its largest unit and the one below it.
pub(crate) use fencepost_check::shown as show;

/// The units from large to small, each with its length in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a duration.
///
/// # Errors
///
/// The text is no sequence of whole numbers with units from large to small. The message names the broken rule.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    if rest.is_empty() {
        return Err(rule("it is empty"));
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(rule(&format!("expected a whole number at '{rest}'")));
        }
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        if unit.is_empty() {
            return Err(rule(&format!("'{number}' has no unit")));
        }
        if !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(rule(&format!("unknown unit '{unit}'")));
        }
        let Some((_, millis)) = units.find(|(name, _)| *name == unit) else {
            return Err(rule(&format!("'{unit}' is out of order or given twice")));
        };
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*millis))
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| rule("it is longer than 1000 days"))?;
        rest = after;
    }
    Ok(Duration::from_millis(total))
}

/// Long enough for everybody, and far from where sums of nanoseconds overflow.
const LONGEST: u64 = 1000 * 86_400_000;

fn rule(broken: &str) -> String {
    format!("{broken} (write it like 30s, 1m30s or 2h; units: d, h, m, s, ms)")
}

/// Milliseconds, for programs.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_durations() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("2h", 7_200_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
            ("90s", 90_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn rubbish_is_refused_with_the_rule() {
        for (text, why) in [
            ("", "empty"),
            ("30", "no unit"),
            ("s", "whole number"),
            ("-1s", "whole number"),
            ("1.5s", "no unit"),
            ("1s1m", "out of order"),
            ("1s1s", "twice"),
            ("1w", "unknown unit"),
            ("1 s", "no unit"),
            ("1s ", "whole number"),
            ("1001d", "1000 days"),
            ("99999999999999999999s", "1000 days"),
            ("1µs", "unknown unit"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
