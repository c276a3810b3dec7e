//! Moments on the clock of a client.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time on a client's [`Clock`](crate::Clock), in nanoseconds. Moments of different boots do not compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Before everything.
    pub const ZERO: Moment = Moment(0);
    /// After everything.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's zero (boot, in production).
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment less `by`, never below [`Moment::ZERO`]; [`Moment::NEVER`] stays.
    pub fn less(self, by: Duration) -> Moment {
        if self == Moment::NEVER { self } else { Moment(self.0.saturating_sub(nanos(by))) }
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates at [`Moment::NEVER`].
    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(by)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Moment::NEVER => f.write_str("never"),
            Moment(n) => write!(f, "{}.{:09}s", n / 1_000_000_000, n % 1_000_000_000),
        }
    }
}

/// Nanoseconds of `d`, saturating (584 years).
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
