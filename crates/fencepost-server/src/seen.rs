//! All locks at one time.

use std::collections::BTreeMap;
use std::time::SystemTime;

use fencepost_core::Info;

/// All locks at one time.
#[derive(Default)]
pub(crate) struct Seen {
    /// When the look at the engine ended, in microseconds since 1970.
    pub(crate) at_micros: u64,
    /// By their names.
    pub(crate) locks: BTreeMap<String, Info>,
}

/// Returns the time of the wall clock, in microseconds since 1970.
pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
