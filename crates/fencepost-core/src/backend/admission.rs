//! Defines the modes of a claim, and the rule of admission that every engine follows. The rule is a pure function.

use std::fmt;

/// The mode in which a claim wants or holds a resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// No other claim holds the resource.
    Exclusive,
    /// Only other shared claims hold the resource.
    Shared,
    /// `n` permits of `of`. Other claims may hold permits as long as the sum is at most `of`. All users of a semaphore give the
    /// same `of`. If they differ, each claim is checked against its own. A [stored limit](Mode::limited) counts for all instead.
    Permits {
        /// The permits that this claim takes; at least 1.
        n: u32,
        /// The permits of the resource; at least `n`.
        of: u32,
    },
}

impl Mode {
    /// Returns the mode as one number, for engines that keep numbers: 0 exclusive, 1 shared, else the permits times 2^32 and out of how many.
    #[must_use]
    pub fn to_number(self) -> i64 {
        match self {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permits { n, of } => (u64::from(n) << 32 | u64::from(of)).cast_signed(),
        }
    }

    /// Reads what [`to_number`](Mode::to_number) returned.
    #[must_use]
    pub fn from_number(number: i64) -> Mode {
        match number {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            packed => {
                let packed = packed.cast_unsigned();
                Mode::Permits { n: (packed >> 32) as u32, of: packed as u32 }
            }
        }
    }

    /// Returns the mode to judge a claim by where a limit is stored for the permits of its resource: the limit counts, and not the
    /// claim's own `of`. A claim for more permits than that never fits.
    #[must_use]
    pub fn limited(self, stored: Option<u32>) -> Mode {
        match (self, stored) {
            (Mode::Permits { n, .. }, Some(of)) => Mode::Permits { n, of },
            _ => self,
        }
    }

    /// Returns whether a claim in this mode can be admitted at all.
    pub fn is_possible(self) -> bool {
        Held::default().fits(self)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits { n, of } => write!(f, "{n} of {of}"),
        }
    }
}

/// Counts the holders of a resource by mode. The rule of admission needs to know no more of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    exclusive: u32,
    shared: u32,
    permits: u64,
    permit_holders: u32,
}

impl Held {
    /// Returns whether no claim holds the resource.
    pub fn is_free(&self) -> bool {
        self.exclusive == 0 && self.shared == 0 && self.permit_holders == 0
    }

    /// Returns how many claims hold the resource.
    pub fn holders(&self) -> u32 {
        self.exclusive + self.shared + self.permit_holders
    }

    /// Returns whether a claim in `mode` can hold the resource beside these holders.
    pub fn fits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.is_free(),
            Mode::Shared => self.exclusive == 0 && self.permit_holders == 0,
            Mode::Permits { n, of } => {
                self.exclusive == 0 && self.shared == 0 && self.permits + u64::from(n) <= u64::from(of)
            }
        }
    }

    /// Adds a claim if it [fits](Held::fits). Returns whether it does. Claims that are given in the order of arrival, up to the first that
    /// does not fit, are first come, first served.
    pub fn admit(&mut self, mode: Mode) -> bool {
        let fits = self.fits(mode);
        if fits {
            self.add(mode);
        }
        fits
    }

    /// Adds a holder.
    pub fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared => self.shared += 1,
            Mode::Permits { n, .. } => {
                self.permits += u64::from(n);
                self.permit_holders += 1;
            }
        }
    }
}

/// One claim on a resource that has not ended: a holder or a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant<K> {
    /// Names the claim.
    pub key: K,
    /// The mode in which it wants or holds the resource.
    pub mode: Mode,
    /// Whether it holds already.
    pub holds: bool,
}

/// Returns whether the claim `me`, which wants `mode`, may hold the resource, or does already.
///
/// `line` has the claims that have not ended, in the order of arrival. The caller removes all others first. If `me` is not in
/// `line`, it counts as the last to arrive.
///
/// The rule is first come, first served. A claim is admitted if this rule admits every waiter before it, and the claim fits beside
/// all holders and those waiters. So a reader waits behind a waiting writer, and a small claim for permits waits behind a large
/// one. No claim starves.
pub fn admit<K: PartialEq>(line: &[Claimant<K>], me: &K, mode: Mode) -> bool {
    let mut held = Held::default();
    for claimant in line.iter().filter(|claimant| claimant.holds) {
        if claimant.key == *me {
            return true;
        }
        held.add(claimant.mode);
    }
    for claimant in line.iter().filter(|claimant| !claimant.holds) {
        if claimant.key == *me {
            break;
        }
        // A waiter that is admitted, but has not collected its grant yet, counts as a holder.
        if !held.admit(claimant.mode) {
            return false;
        }
    }
    held.fits(mode)
}

/// Decides the same for a claim that is [unfair](crate::Claim::unfair), at its arrival. It may pass the waiters that [`admit`] would not
/// grant. Those that it would grant count as holders. An upgrade that waits is an exclusive holder, so no claim passes it. A claim in
/// `line` has arrived before: it waits for its turn.
pub fn admit_barging<K: PartialEq>(line: &[Claimant<K>], me: &K, mode: Mode) -> bool {
    let mut held = Held::default();
    line.iter()
        .filter(|claimant| claimant.holds)
        .chain(winners(line))
        .for_each(|claimant| held.add(claimant.mode));
    let is_new = line.iter().all(|claimant| claimant.key != *me);
    (is_new && held.fits(mode)) || admit(line, me, mode)
}

/// Returns the waiters that [`admit`] would grant, in order.
pub fn winners<K>(line: &[Claimant<K>]) -> impl Iterator<Item = &Claimant<K>> {
    let mut held = Held::default();
    line.iter().filter(|claimant| claimant.holds).for_each(|claimant| held.add(claimant.mode));
    line.iter().filter(|claimant| !claimant.holds).take_while(move |claimant| held.admit(claimant.mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive as X, Shared as S};

    const fn p(n: u32) -> Mode {
        Mode::Permits { n, of: 3 }
    }

    fn line(claimants: &[(u8, Mode, bool)]) -> Vec<Claimant<u8>> {
        claimants.iter().map(|&(key, mode, holds)| Claimant { key, mode, holds }).collect()
    }

    #[test]
    fn a_free_resource_goes_to_anybody() {
        for mode in [X, S, p(1), p(3)] {
            assert!(admit(&[], &1, mode));
        }
        assert!(!admit(&[], &1, Mode::Permits { n: 4, of: 3 }));
    }

    #[test]
    fn who_may_stand_beside_whom() {
        for (held, asked, granted) in [
            (X, X, false),
            (X, S, false),
            (X, p(1), false),
            (S, X, false),
            (S, S, true),
            (S, p(1), false),
            (p(1), X, false),
            (p(1), S, false),
            (p(1), p(2), true),
            (p(2), p(2), false),
        ] {
            assert_eq!(admit(&line(&[(1, held, true)]), &2, asked), granted, "{asked} beside {held}");
        }
    }

    #[test]
    fn holders_are_counted() {
        let mut held = Held::default();
        assert!(held.is_free() && held.holders() == 0);
        for (count, mode) in (1..).zip([S, S, p(2), p(1), X, S]) {
            held.add(mode);
            assert!(!held.is_free() && held.holders() == count);
        }
    }

    #[test]
    fn nobody_overtakes() {
        let writer_waits = line(&[(1, S, true), (2, X, false), (3, S, false)]);
        assert!(!admit(&writer_waits, &3, S));
        assert!(!admit(&writer_waits, &4, S));
        let large_waits = line(&[(1, p(2), true), (2, p(2), false)]);
        assert!(!admit(&large_waits, &3, p(1)));
        let free_with_a_waiter = line(&[(1, X, false)]);
        assert!(!admit(&free_with_a_waiter, &2, X));
        assert!(admit(&free_with_a_waiter, &1, X));
    }

    #[test]
    fn a_barging_claim_passes_those_that_do_not_fit() {
        let writer_waits = line(&[(1, S, true), (2, X, false), (3, S, false)]);
        assert!(admit_barging(&writer_waits, &4, S));
        assert!(!admit_barging(&writer_waits, &4, X));
        assert!(!admit_barging(&writer_waits, &3, S), "it waits already");
        let large_waits = line(&[(1, p(2), true), (2, p(3), false)]);
        assert!(admit_barging(&large_waits, &3, p(1)));
        assert!(!admit_barging(&large_waits, &3, p(2)));
        // The waiter in front has its grant, although it has not collected it yet.
        assert!(!admit_barging(&line(&[(1, X, false)]), &2, X));
        assert!(!admit_barging(&line(&[(1, p(1), true), (2, p(1), false)]), &3, p(2)));
        let upgrade_waits = line(&[(1, S, true), (2, X, true), (3, X, false)]);
        assert!(!admit_barging(&upgrade_waits, &4, S));
        assert!(admit_barging(&[], &1, X));
        assert!(admit_barging(&line(&[(1, X, true)]), &1, X), "it asks again");
    }

    #[test]
    fn a_mode_is_stored_as_a_number_and_shown_in_words() {
        let most = Mode::Permits { n: u32::MAX, of: u32::MAX };
        for (mode, number, words) in [
            (X, 0, "exclusive"),
            (S, 1, "shared"),
            (p(2), (2 << 32) + 3, "2 of 3"),
            (most, -1, "4294967295 of 4294967295"),
        ] {
            assert_eq!((mode.to_number(), mode.to_string().as_str()), (number, words));
            assert_eq!(Mode::from_number(number), mode);
        }
    }

    #[test]
    fn a_stored_limit_counts_for_permits_alone() {
        assert_eq!(p(2).limited(Some(1)), Mode::Permits { n: 2, of: 1 });
        assert_eq!(p(2).limited(None), p(2));
        assert_eq!([X, S].map(|mode| mode.limited(Some(1))), [X, S]);
        assert!(!p(2).limited(Some(1)).is_possible() && p(2).limited(Some(2)).is_possible());
        let held = line(&[(1, p(3), true)]);
        assert!(admit(&held, &2, p(1).limited(Some(4))));
        assert!(!admit(&held, &2, p(1).limited(Some(2))));
    }

    #[test]
    fn asking_again_while_holding_is_granted() {
        assert!(admit(&line(&[(1, X, true)]), &1, X));
    }

    #[test]
    fn winners_are_those_whom_admit_would_grant() {
        let modes = [X, S, p(1), p(2)];
        // All queues of four claims. The first one holds in half of them.
        for code in 0..4u32.pow(4) * 2 {
            let holds = code % 2 == 1;
            let mut rest = code / 2;
            let claimants: Vec<_> = (0..4u8)
                .map(|key| {
                    let mode = modes[(rest % 4) as usize];
                    rest /= 4;
                    Claimant { key, mode, holds: holds && key == 0 }
                })
                .collect();
            let won: Vec<u8> = winners(&claimants).map(|claimant| claimant.key).collect();
            let granted: Vec<u8> = claimants
                .iter()
                .filter(|claimant| !claimant.holds && admit(&claimants, &claimant.key, claimant.mode))
                .map(|claimant| claimant.key)
                .collect();
            assert_eq!(won, granted, "{claimants:?}");
        }
    }
}
