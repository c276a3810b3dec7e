//! kill -9 of a holder.

use super::server::{TICK, start, url};
use crate::figure::Measured;
use crate::killed::{self, LEASE};

/// The longest time, in seconds, past its session and one tick after which a killed holder's lock is granted to the next.
pub(crate) fn holders() -> Measured {
    let server = start();
    let url = format!("{}?session={}ms", url(&server), LEASE.as_millis());
    let held = format!("in sessions of {} s, ticks of {} s", LEASE.as_secs(), TICK.as_secs_f64());
    killed::holders(&url, LEASE + TICK, &held)
}
