//! The phases of a program that ends, and what the guardian does in each.

use std::time::Duration;

use fencepost_core::Backoff;

use super::protocol::Why;

/// Paces the rounds of killing: a process that does not die of SIGKILL (it sleeps in the kernel, or belongs to another user) must
/// not cost a core.
pub(super) const ROUNDS: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));

/// Where the program stands. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Phase {
    Running,
    /// SIGTERM was sent; SIGKILL follows then.
    Ending(u64),
    /// SIGKILL is sent again and again; the next time, and the pauses after it.
    Killing(u64, Backoff),
}

/// The work of the guardian at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    Wait,
    /// Send SIGTERM; the reason, unless the program has ended by itself.
    End(Option<Why>),
    /// Send SIGKILL, and again after a pause.
    Kill(Backoff),
}

impl Phase {
    /// Returns what is due at `now`. `term`: when SIGTERM must be sent for the lease; `limit`: the moment of `--max-hold`.
    pub(super) fn step(self, now: u64, term: Option<u64>, limit: Option<u64>, ended: bool) -> Step {
        let is_over = |moment: Option<u64>| moment.is_some_and(|moment| now >= moment);
        match self {
            Phase::Running if is_over(term) => Step::End(Some(Why::Unrenewed)),
            Phase::Running if is_over(limit) => Step::End(Some(Why::Limit)),
            // The program has ended and left others behind, else there would be nobody to reap.
            Phase::Running if ended => Step::End(None),
            Phase::Ending(kill) if now >= kill => Step::Kill(ROUNDS),
            Phase::Killing(next, rounds) if now >= next => Step::Kill(rounds),
            _ => Step::Wait,
        }
    }

    /// Returns the next moment at which something is to be done.
    pub(super) fn due(self, term: Option<u64>, limit: Option<u64>) -> Option<u64> {
        match self {
            Phase::Running => [term, limit].into_iter().flatten().min(),
            Phase::Ending(kill) => Some(kill),
            Phase::Killing(next, _) => Some(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_taken_when_it_is_due_and_not_before() {
        let lease = Step::End(Some(Why::Unrenewed));
        let mut later = ROUNDS;
        later.pause();
        let cases = [
            (Phase::Running, Some(7), Some(9), 7, lease),
            (Phase::Running, Some(7), Some(7), 7, lease),
            (Phase::Running, Some(9), Some(7), 7, Step::End(Some(Why::Limit))),
            (Phase::Running, None, Some(7), 7, Step::End(Some(Why::Limit))),
            (Phase::Ending(7), Some(1), Some(1), 7, Step::Kill(ROUNDS)),
            (Phase::Killing(7, ROUNDS), Some(1), Some(1), 7, Step::Kill(ROUNDS)),
            (Phase::Killing(7, later), None, None, 7, Step::Kill(later)),
        ];
        for (phase, term, limit, due, step) in cases {
            assert_eq!(phase.due(term, limit), Some(due), "{phase:?}");
            assert_eq!(phase.step(due - 1, term, limit, false), Step::Wait, "{phase:?}");
            assert_eq!(phase.step(due, term, limit, false), step, "{phase:?}");
            assert_eq!(phase.step(due + 1, term, limit, false), step, "{phase:?}");
        }
    }

    #[test]
    fn the_rest_of_a_program_that_has_ended_is_ended_at_once() {
        assert_eq!(Phase::Running.due(None, None), None);
        assert_eq!(Phase::Running.step(7, None, None, false), Step::Wait);
        assert_eq!(Phase::Running.step(7, Some(8), Some(8), true), Step::End(None));
        assert_eq!(Phase::Ending(8).step(7, None, None, true), Step::Wait);
    }
}
