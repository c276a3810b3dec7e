//! Whether a job has run lately, by the [runs](fencepost_core::Runs) that an engine keeps of its lock: the verdict of `fencepost check` and of
//! the lock service, in the same words.

mod duration;
mod runs;
mod time;
mod verdict;

pub use duration::shown;
pub use runs::{not_kept, phrase};
pub use time::utc;
pub use verdict::{Limit, Limits, Status, Verdict};
