//! What happened in each minute of the last hour, as numbers: the charts in the head of the page.

use std::collections::VecDeque;

/// How many minutes are kept.
pub(crate) const MINUTES: usize = 60;
const MINUTE: u64 = 60_000_000;

/// The last hour. Its size is fixed, however much happens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hour {
    /// The oldest first. A minute in which nothing was noted is missing.
    minutes: VecDeque<(u64, Minute)>,
}

/// The numbers of a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// The most locks and waiters of a look.
    pub(crate) locks: u32,
    pub(crate) waiters: u32,
    pub(crate) grants: u32,
    /// Grants that ended with their lease, or whose holder was told that it lost the lock.
    pub(crate) losses: u32,
    pub(crate) evictions: u32,
}

impl Hour {
    /// Returns the minute of this time. `None`: it was more than an hour before the latest one.
    pub(crate) fn at(&mut self, micros: u64) -> Option<&mut Minute> {
        let number = micros / MINUTE;
        if self.minutes.back().is_none_or(|(last, _)| *last < number) {
            self.minutes.push_back((number, Minute::default()));
            let first = (number + 1).saturating_sub(MINUTES as u64);
            while self.minutes.front().is_some_and(|(minute, _)| *minute < first) {
                self.minutes.pop_front();
            }
        }
        let (last, _) = self.minutes.back()?;
        if number + MINUTES as u64 <= *last {
            return None;
        }
        let at = match self.minutes.binary_search_by_key(&number, |(minute, _)| *minute) {
            Ok(at) => at,
            Err(at) => {
                self.minutes.insert(at, (number, Minute::default()));
                at
            }
        };
        self.minutes.get_mut(at).map(|(_, minute)| minute)
    }

    /// Returns the minutes of the hour that ends now, the oldest first. `None`: nothing was noted in that minute.
    pub(crate) fn until(&self, now_micros: u64) -> [Option<Minute>; MINUTES] {
        let mut hour = [None; MINUTES];
        let first = (now_micros / MINUTE + 1).saturating_sub(MINUTES as u64);
        for (number, minute) in &self.minutes {
            let place = number.checked_sub(first).and_then(|at| hour.get_mut(usize::try_from(at).ok()?));
            if let Some(place) = place {
                *place = Some(*minute);
            }
        }
        hour
    }

    /// Returns the grants a second of the last minute, or of the time since `since_micros` if that is shorter.
    pub(crate) fn grants_a_second(&self, since_micros: u64, now_micros: u64) -> f64 {
        let hour = self.until(now_micros);
        let grants = |back: usize| hour[MINUTES - 1 - back].map_or(0.0, |minute| f64::from(minute.grants));
        let passed = (now_micros % MINUTE) as f64 / MINUTE as f64;
        let watched = now_micros.saturating_sub(since_micros).clamp(1_000_000, MINUTE) as f64 / 1_000_000.0;
        // Of the minute before this one, the part that is less than a minute ago.
        (grants(0) + grants(1) * (1.0 - passed)) / watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_sixty_minutes() {
        let mut hour = Hour::default();
        let start = 1_000 * MINUTE;
        for minute in 0..500 {
            hour.at(start + minute * MINUTE).unwrap().grants = 30;
        }
        assert_eq!(hour.minutes.len(), MINUTES);
        let now = start + 499 * MINUTE + MINUTE / 2;
        assert!(hour.until(now).iter().all(|minute| minute.is_some_and(|minute| minute.grants == 30)));
        assert_eq!(hour.grants_a_second(start, now), 0.75);
        assert!(hour.at(start).is_none(), "it is too long ago");
        hour.at(now + 3 * MINUTE).unwrap().evictions = 1;
        hour.at(now + MINUTE).unwrap().losses = 2;
        let later = hour.until(now + 3 * MINUTE);
        assert_eq!(later[MINUTES - 2], None);
        assert_eq!((later[MINUTES - 1].unwrap().evictions, later[MINUTES - 3].unwrap().losses), (1, 2));
        assert_eq!(hour.minutes.len(), MINUTES - 1);
    }
}
