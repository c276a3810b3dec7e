//! Limits how many requests of a token are served in a second.

use std::time::{Duration, Instant};

use fencepost_core::sync::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// A limit of requests in a second. After a pause a second's worth comes at once.
pub(crate) struct Rate {
    /// The time that each request takes of the limit.
    each: Duration,
    /// Until when the requests so far have used the limit.
    used: Mutex<Option<Instant>>,
}

impl Rate {
    pub(crate) fn new(a_second: u32) -> Rate {
        Rate { each: SECOND / a_second.max(1), used: Mutex::default() }
    }

    /// Counts a request at this time. `false`: it is over the limit, and is not counted.
    pub(crate) fn admit(&self, now: Instant) -> bool {
        let mut used = self.used.lock();
        let after = used.map_or(now, |used| used.max(now)) + self.each;
        let fits = after <= now + SECOND;
        if fits {
            *used = Some(after);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_requests() {
        let (rate, now) = (Rate::new(4), Instant::now());
        let at = |millis| rate.admit(now + Duration::from_millis(millis));
        assert!((0..4).all(|_| at(0)) && !at(0) && !at(249));
        assert!(at(250) && !at(250), "one more after a quarter");
        assert!((0..4).all(|_| at(5_000)) && !at(5_000), "a pause saves no more than a second");
        let slow = Rate::new(1);
        assert!(slow.admit(now) && !slow.admit(now + SECOND / 2) && slow.admit(now + SECOND));
    }
}
