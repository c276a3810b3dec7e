//! Durations as people read them.

use std::time::Duration;

/// The units from large to small, each with its length in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Returns a duration as a person reads it: its largest unit and the one below it.
pub fn shown(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis >= 1_000 {
        millis -= millis % 1_000;
    }
    let Some(largest) = UNITS.iter().position(|(_, length)| millis >= *length) else {
        return "0s".to_owned();
    };
    let mut text = String::new();
    for (name, length) in UNITS.into_iter().skip(largest).take(2) {
        if millis >= length {
            text.push_str(&format!("{}{name}", millis / length));
        }
        millis %= length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_to_two_units() {
        for (millis, text) in [
            (0, "0s"),
            (12, "12ms"),
            (1_999, "1s"),
            (90_000, "1m30s"),
            (93_784_005, "1d2h"),
            (3_600_000, "1h"),
            (21_607_000, "6h"),
            (67_000, "1m7s"),
        ] {
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
    }
}
