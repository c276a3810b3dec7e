//! The clock of leases, which goes on while the machine is suspended.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

#[cfg(all(target_os = "linux", not(fencepost_portable)))]
const SOURCE: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(any(not(target_os = "linux"), fencepost_portable))]
const SOURCE: ClockId = ClockId::CLOCK_MONOTONIC;

/// Now, in nanoseconds.
pub(crate) fn now() -> u64 {
    // The call fails only for clocks that the kernel does not know. Linux has this one since 2.6.39.
    clock_gettime(SOURCE).map_or(0, |time| nanos(Duration::from(time)))
}

/// A duration in nanoseconds; what does not fit is forever.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
