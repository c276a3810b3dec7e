//! The circuit breaker: whether the primary answers, and since when that is known.

use std::time::Duration;

use fencepost_core::Moment;

/// The number of failures in a row that open the breaker. The last one is a probe's.
const FAILURES: u32 = 2;

/// Keeps the facts about the primary that probes without a gap have shown.
///
/// Both kinds of certainty need an unbroken chain of probes: each began at most one interval after the one before it. A process that was
/// paused has a gap, and its chain begins again.
pub(super) struct Breaker {
    interval: Duration,
    /// One longest lease plus one interval.
    settling: Duration,
    state: State,
    /// When the last probe began.
    probed: Option<Moment>,
    /// Somebody wants to know at once.
    urgent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// After the start and after so many failures. `before`: the answers until then.
    Unsure { failures: u32, before: Option<Answers> },
    /// Each probe since then was answered.
    Answers { since: Moment, answers: Answers },
    /// No probe since then was answered. `last`: when the last of them began.
    Away { since: Moment, last: Moment },
}

/// The facts that answered probes have shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Answers {
    /// From then on no client grants by the fallback alone: one interval after the first answer.
    ready: Moment,
    /// When the last answered probe began.
    last: Moment,
}

/// Which engines have to grant a claim, where there is a fallback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The primary alone: no grant of the fallback alone can be left.
    Primary,
    /// Both.
    Both,
    /// None may, until then or a change.
    Nobody { until: Moment },
    /// The fallback alone. A request that it confirms counts as sent at `sent_by` at the latest.
    Fallback { sent_by: Moment },
}

impl Breaker {
    /// `settling`: how long a chain has to be.
    pub(super) fn new(settling: Duration, interval: Duration) -> Breaker {
        let state = State::Unsure { failures: 0, before: None };
        Breaker { interval, settling, state, probed: None, urgent: false }
    }

    /// The primary could not be reached at the start.
    pub(super) fn begin_away(&mut self, now: Moment) {
        self.state = State::Away { since: now, last: now };
        self.probed = Some(now);
    }

    /// Returns whether the breaker is open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Away { .. })
    }

    /// The beginning of the last probe that was answered, if none has failed since.
    pub(super) fn last_answer(&self) -> Option<Moment> {
        match self.state {
            State::Answers { answers, .. } => Some(answers.last),
            State::Unsure { .. } | State::Away { .. } => None,
        }
    }

    /// Returns from when on the primary alone grants, if each probe until then is answered. That is a change which no probe tells of.
    pub(super) fn alone_from(&self) -> Moment {
        match self.state {
            State::Answers { since, .. } => since + self.settling,
            State::Unsure { .. } | State::Away { .. } => Moment::NEVER,
        }
    }

    /// Returns which engines have to grant a claim.
    ///
    /// The fallback alone grants for one interval after the primary's return: some client may not know of that yet. A grant of both before
    /// that could have a greater token than such a grant after it.
    pub(super) fn phase(&self, now: Moment) -> Phase {
        // After a pause the next probe begins the chain again.
        let fresh = |last: Moment| now <= last + self.interval;
        let unknown = Phase::Nobody { until: now + self.interval };
        match self.state {
            State::Answers { answers, .. } if !fresh(answers.last) => unknown,
            State::Answers { answers, .. } if now < answers.ready => Phase::Nobody { until: answers.ready },
            State::Answers { since, .. } if now >= since + self.settling => Phase::Primary,
            State::Answers { .. } => Phase::Both,
            State::Unsure { before: Some(answers), .. } if answers.ready <= now && fresh(answers.last) => {
                Phase::Both
            }
            State::Unsure { .. } => unknown,
            State::Away { last, .. } if !fresh(last) => unknown,
            State::Away { since, last } if now >= since + self.settling => {
                Phase::Fallback { sent_by: last + self.interval }
            }
            State::Away { since, .. } => Phase::Nobody { until: since + self.settling },
        }
    }

    /// The probe that began at `begin` was answered. Returns whether the state changed.
    pub(super) fn answered(&mut self, begin: Moment, now: Moment) -> bool {
        let before = self.state;
        let follows = |answers: Answers| begin <= answers.last + self.interval;
        // The primary may have come back as late as now.
        let (since, ready) = match before {
            State::Answers { since, answers } if follows(answers) => (since, answers.ready),
            State::Unsure { before: Some(answers), .. } if follows(answers) => (now, answers.ready),
            _ => (now, now + self.interval),
        };
        self.state = State::Answers { since, answers: Answers { ready, last: begin } };
        !matches!(before, State::Answers { since: before, .. } if before == since)
    }

    /// The probe that began at `begin` failed. Returns whether the state changed.
    pub(super) fn failed(&mut self, begin: Moment, now: Moment) -> bool {
        let before = self.state;
        self.state = match before {
            State::Away { since, last } if begin <= last + self.interval => {
                State::Away { since, last: begin }
            }
            State::Away { .. } => State::Away { since: now, last: begin },
            State::Unsure { failures, .. } if failures + 1 >= FAILURES => {
                State::Away { since: now, last: begin }
            }
            State::Unsure { failures, before } => State::Unsure { failures: failures + 1, before },
            State::Answers { answers, .. } => State::Unsure { failures: 1, before: Some(answers) },
        };
        match (before, self.state) {
            (State::Away { since: before, .. }, State::Away { since, .. }) => before != since,
            (before, after) => std::mem::discriminant(&before) != std::mem::discriminant(&after),
        }
    }

    /// A request to the primary failed, or its connection broke. Returns whether the state changed. The next probe is due at once.
    pub(super) fn request_failed(&mut self) -> bool {
        match &mut self.state {
            State::Away { .. } => return false,
            State::Unsure { failures, .. } => *failures += 1,
            State::Answers { answers, .. } => {
                self.state = State::Unsure { failures: 1, before: Some(*answers) };
                self.urgent = true;
                return true;
            }
        }
        self.urgent = true;
        false
    }

    /// A request to the primary has no answer yet: a probe is due at once, unless one has just begun.
    pub(super) fn suspect(&mut self) {
        self.urgent = true;
    }

    /// Notes that a probe begins.
    pub(super) fn probe_begins(&mut self, now: Moment) {
        self.probed = Some(now);
        self.urgent = false;
    }

    /// Returns when the next probe is due. `steady`: also while the primary answers.
    pub(super) fn next_probe(&self, steady: bool) -> Moment {
        let Some(probed) = self.probed else {
            return if steady || self.urgent { Moment::ZERO } else { Moment::NEVER };
        };
        match self.state {
            _ if self.urgent => probed + self.interval / 8,
            State::Unsure { failures, .. } if failures > 0 => probed + self.interval / 8,
            State::Away { .. } => probed + self.interval / 2,
            State::Unsure { .. } | State::Answers { .. } if steady => probed + self.interval / 2,
            State::Unsure { .. } | State::Answers { .. } => Moment::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const INTERVAL: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn breaker() -> Breaker {
        Breaker::new(LEASE + INTERVAL, INTERVAL)
    }

    /// Probes at each half interval from `from` to `to`, all with this outcome.
    fn probes(breaker: &mut Breaker, from: u64, to: u64, answered: bool) {
        for begin in (from..=to).step_by(1_000) {
            breaker.probe_begins(at(begin));
            if answered {
                breaker.answered(at(begin), at(begin + 1));
            } else {
                breaker.failed(at(begin), at(begin + 1));
            }
        }
    }

    #[test]
    fn the_primary_alone_decides_after_a_lease_and_an_interval() {
        let mut breaker = breaker();
        assert_eq!(
            breaker.phase(at(0)),
            Phase::Nobody { until: at(2_000) },
            "nothing is known after the start"
        );
        probes(&mut breaker, 1_000, 3_000, true);
        assert_eq!(
            breaker.phase(at(3_000)),
            Phase::Nobody { until: at(3_001) },
            "the fallback may still grant"
        );
        assert_eq!(breaker.phase(at(3_001)), Phase::Both);
        probes(&mut breaker, 4_000, 33_000, true);
        assert_eq!(breaker.phase(at(33_000)), Phase::Both);
        assert_eq!(breaker.phase(at(33_001)), Phase::Primary);
        assert_eq!(breaker.phase(at(35_000)), Phase::Primary);
        assert_eq!(
            breaker.phase(at(35_001)),
            Phase::Nobody { until: at(37_001) },
            "the last probe is too long ago"
        );
        probes(&mut breaker, 36_000, 36_000, true);
        assert_eq!(breaker.phase(at(36_001)), Phase::Nobody { until: at(38_001) }, "the chain has a gap");
    }

    #[test]
    fn the_fallback_alone_decides_after_a_lease_and_an_interval() {
        let mut breaker = breaker();
        probes(&mut breaker, 0, 40_000, true);
        assert!(breaker.request_failed());
        assert_eq!(breaker.phase(at(40_001)), Phase::Both);
        breaker.probe_begins(at(40_100));
        assert!(breaker.failed(at(40_100), at(40_200)), "a request and a probe have failed");
        assert_eq!(breaker.phase(at(40_200)), Phase::Nobody { until: at(72_200) });
        probes(&mut breaker, 41_100, 72_100, false);
        assert_eq!(breaker.phase(at(72_199)), Phase::Nobody { until: at(72_200) });
        assert_eq!(breaker.phase(at(72_200)), Phase::Fallback { sent_by: at(74_100) });
        assert_eq!(
            breaker.phase(at(74_101)),
            Phase::Nobody { until: at(76_101) },
            "that is no evidence any more"
        );
        probes(&mut breaker, 75_000, 75_000, false);
        assert_eq!(breaker.phase(at(75_001)), Phase::Nobody { until: at(107_001) }, "the chain begins again");
        assert!(breaker.answered(at(76_000), at(76_001)));
        assert_eq!(breaker.phase(at(76_001)), Phase::Nobody { until: at(78_001) });
    }

    #[test]
    fn one_failure_opens_nothing_and_begins_the_chain_again() {
        let mut breaker = breaker();
        probes(&mut breaker, 0, 40_000, true);
        assert!(breaker.failed(at(41_000), at(41_001)));
        assert!(!breaker.is_open());
        assert_eq!(breaker.phase(at(41_001)), Phase::Both, "nothing is waited for");
        probes(&mut breaker, 42_000, 73_000, true);
        assert_eq!(breaker.phase(at(73_000)), Phase::Both);
        probes(&mut breaker, 74_000, 74_000, true);
        assert_eq!(breaker.phase(at(74_001)), Phase::Primary);
    }

    #[test]
    fn a_probe_is_due_twice_an_interval_and_sooner_in_doubt() {
        let mut breaker = breaker();
        assert_eq!((breaker.next_probe(false), breaker.next_probe(true)), (Moment::NEVER, Moment::ZERO));
        probes(&mut breaker, 0, 0, true);
        assert_eq!((breaker.next_probe(false), breaker.next_probe(true)), (Moment::NEVER, at(1_000)));
        breaker.suspect();
        assert_eq!(breaker.next_probe(false), at(250));
        probes(&mut breaker, 1_000, 1_000, false);
        assert_eq!(breaker.next_probe(false), at(1_250));
        probes(&mut breaker, 2_000, 2_000, false);
        assert!(breaker.is_open());
        assert_eq!(breaker.next_probe(false), at(3_000));
    }
}
