//! Pauses between attempts.

use std::time::Duration;

use crate::time::Clock;

/// Counts attempts that failed and paces the next ones. Each pause is twice the one before, up to a longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    seed: Option<u64>,
    count: u32,
}

impl Backoff {
    /// Creates a backoff whose pauses grow from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, seed: None, count: 0 }
    }

    /// Shortens each pause by up to a half, so that clients that failed together do not come back together. Clients need different
    /// seeds. The same seed gives the same pauses.
    #[must_use]
    pub const fn jittered(self, seed: u64) -> Backoff {
        Backoff { seed: Some(seed), ..self }
    }

    /// Counts an attempt that failed, and returns the pause after it.
    pub fn pause(&mut self) -> Duration {
        let factor = 1u32.checked_shl(self.count).unwrap_or(u32::MAX);
        let pause = self.first.saturating_mul(factor).min(self.longest);
        self.count = self.count.saturating_add(1);
        self.seed.map_or(pause, |seed| jitter(pause, seed ^ u64::from(self.count)))
    }

    /// Returns the longest pause.
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns how many attempts have failed since the start or [`reset`](Backoff::reset).
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Starts again with the first pause, after an attempt that worked.
    pub const fn reset(&mut self) {
        self.count = 0;
    }

    /// Counts an attempt that failed, and sleeps for the pause after it.
    ///
    /// # Cancel safety
    /// May be dropped; the attempt stays counted.
    pub async fn sleep(&mut self, clock: &Clock) {
        clock.sleep_until(clock.now() + self.pause()).await;
    }
}

/// Returns a time between half of `pause` and all of it. The same seed gives the same time.
pub fn jitter(pause: Duration, seed: u64) -> Duration {
    // SplitMix64's mixer: seeds that differ in few bits give times that are far apart.
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    pause / 2 + (pause / 2).mul_f64((mixed >> 40) as f64 / (1u64 << 24) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let mut backoff = Backoff::new(MS * 3, MS * 20);
        let pauses: Vec<_> = (0..5).map(|_| backoff.pause()).collect();
        assert_eq!(pauses, [MS * 3, MS * 6, MS * 12, MS * 20, MS * 20]);
        assert_eq!(backoff.count(), 5);
        backoff.reset();
        assert_eq!(backoff.pause(), MS * 3);
        assert!((0..100).all(|_| backoff.pause() == MS * 20 || backoff.count() < 5));
        assert_eq!(backoff.pause(), MS * 20, "it stays at the longest");
        let mut endless = Backoff::new(MS, Duration::MAX);
        (0..100).for_each(|_| assert!(endless.pause() >= MS));
    }

    #[test]
    fn jitter_spreads_pauses_between_a_half_and_the_whole() {
        let mut pauses: Vec<_> =
            (0..200).map(|seed| Backoff::new(MS, MS).jittered(seed << 8).pause()).collect();
        pauses.sort_unstable();
        assert!(pauses[0] >= MS / 2 && pauses[0] < MS * 5 / 8, "{:?}", pauses[0]);
        assert!(pauses[199] <= MS && pauses[199] > MS * 7 / 8, "{:?}", pauses[199]);
        pauses.dedup();
        assert!(pauses.len() > 190, "{} differ", pauses.len());
        let mut backoff = Backoff::new(MS, MS).jittered(7);
        assert_ne!(backoff.pause(), backoff.pause(), "one client's pauses differ, too");
    }
}
