//! How a server's clock stands to ours.

use std::time::Duration;

use fencepost_core::{Error, Finding};

use super::{Probe, Role};

/// The quickest of so many round trips counts.
const ROUNDS: usize = 5;
/// A difference above this is more than well-kept clocks have.
const APART: i64 = 1_000_000;
/// Leases are shorter by this after a failover to a clock that is ahead; their margin is a fiftieth, at least 50 ms.
const MARGIN: i64 = 50_000;

/// How far a server's clock is from this machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Skew {
    /// Ahead of ours by so many µs.
    pub(super) micros: i64,
    /// Within so many.
    pub(super) error: i64,
}

/// Compares the clocks: the server read its own between the send and the answer.
pub(super) async fn measure(probe: &mut Probe) -> Result<Skew, Error> {
    let mut best: Option<Skew> = None;
    for _ in 0..ROUNDS {
        let (start, wall) = probe.clock();
        let (seconds, micros): (i64, i64) = probe.ask(&["TIME"]).await?;
        let half = micros_of(probe.clock().0.since(start)) / 2;
        let ours = i64::try_from(wall).unwrap_or(i64::MAX).saturating_add(half);
        let skew = Skew { micros: seconds * 1_000_000 + micros - ours, error: half + 1 };
        if best.is_none_or(|best| skew.error < best.error) {
            best = Some(skew);
        }
    }
    Ok(best.unwrap_or(Skew { micros: 0, error: i64::MAX }))
}

/// Judges the difference to this machine's clock.
pub(super) fn judge(skew: &Skew, role: Role) -> Finding {
    let says = format!("{} this machine's", skew.words());
    match role {
        _ if skew.micros.abs() - skew.error < APART => Finding::ok("clock", says),
        Role::Node => Finding::warning(
            "clock",
            format!("{says}: a node takes a proposed token only within 1 s of its own clock, so each grant takes two rounds"),
        )
        .advice("let an NTP service keep the clocks of all nodes"),
        Role::Alone | Role::Master => Finding::note(
            "clock",
            format!("{says}; leases and tokens go by the server's alone, so that this does no harm by itself"),
        )
        .advice("let an NTP service keep the clocks, and slew rather than step them"),
    }
}

/// Judges the clock difference between a master and its replica. Leases end by the clock of the current master.
pub(super) fn between(master: &Skew, replica: &Skew) -> Option<Finding> {
    let apart = Skew { micros: replica.micros - master.micros, error: master.error + replica.error };
    if apart.micros.abs() - apart.error <= MARGIN {
        return None;
    }
    let effect = if apart.micros > 0 {
        "after a failover leases would end so much earlier than their holders believe"
    } else {
        "after a failover leases would last so much longer"
    };
    let says = format!("{} its master's: {effect}", apart.words());
    Some(Finding::warning("clock", says).advice("let an NTP service keep the clocks of all servers"))
}

impl Skew {
    fn words(&self) -> String {
        let error = show(self.error);
        match self.micros {
            micros if micros.abs() <= self.error => format!("within {error} of"),
            micros if micros > 0 => format!("{} (± {error}) ahead of", show(micros)),
            micros => format!("{} (± {error}) behind", show(-micros)),
        }
    }
}

/// µs as a person reads them.
fn show(micros: i64) -> String {
    match micros {
        ..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
    }
}

fn micros_of(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn a_difference_is_shown_with_its_error_bar() {
        let words = |micros, error| Skew { micros, error }.words();
        assert_eq!(words(40, 50), "within 50 µs of");
        assert_eq!(words(2_340, 60), "2.3 ms (± 60 µs) ahead of");
        assert_eq!(words(-3_600_000_000, 1_200), "3600.0 s (± 1.2 ms) behind");
    }

    #[test]
    fn what_may_be_the_networks_delay_is_no_difference() {
        let far = Skew { micros: 1_400_000, error: 500_000 };
        assert_eq!(judge(&far, Role::Node).severity, Severity::Ok);
        let sure = Skew { error: 1_000, ..far };
        assert_eq!(judge(&sure, Role::Node).severity, Severity::Warning);
        assert_eq!(judge(&sure, Role::Alone).severity, Severity::Note);
    }

    #[test]
    fn a_replica_ahead_of_its_master_is_told() {
        let at = |micros| Skew { micros, error: 100 };
        assert_eq!(between(&at(10_000_000), &at(10_020_000)), None);
        let found = between(&at(0), &at(3_000_000)).expect("three seconds are many");
        assert!(found.severity == Severity::Warning && found.says.contains("earlier"), "{found}");
        assert!(between(&at(0), &at(-3_000_000)).is_some_and(|found| found.says.contains("longer")));
    }
}
