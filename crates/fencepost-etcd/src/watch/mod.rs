//! The watch: one stream per process, which wakes waiters and tells holders of evictions and deleted keys.

pub(crate) mod deleted;
pub(crate) mod queue;
pub(crate) mod recent;
pub(crate) mod stream;

use std::sync::Arc;

use fencepost_core::Moment;

use crate::watch::queue::Queue;

/// A command to the watch's task.
pub(crate) enum Command {
    /// Open the stream.
    Start,
    Watch(Arc<Queue>),
    /// Check then for grants that are held for long.
    CheckGrants(Moment),
    Close,
}
