//! Time: moments, the clock of a client and its timers.
//!
//! Every deadline of fencepost runs on one [`Clock`] per client. In production that is `CLOCK_BOOTTIME`, which
//! also counts while the machine is suspended (`Instant` does not, on Linux), so that a laptop that wakes up knows
//! that its leases have expired. In tests it is a clock that stands still until it is told to move.

mod backoff;
mod clock;
mod due_queue;
mod moment;

pub use backoff::{Backoff, jitter};
pub use clock::{Clock, Sleep};
pub use due_queue::{DueKey, DueQueue};
pub use moment::Moment;
pub(crate) use moment::nanos;
