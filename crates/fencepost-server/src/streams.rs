//! The end of the streams that hold locks.

use std::time::Duration;

use tokio::sync::watch;

use crate::events::UNREAD;

/// After which silence the caller stops its work, at most. The service notices a connection that is cut off later than that: see `SILENCE`
/// in `listen.rs`.
pub(crate) const STOP_AFTER: Duration = Duration::from_secs(10);

/// The streams that hold locks. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Streams(watch::Sender<bool>);

impl Streams {
    /// Ends all streams, and those that begin later. The holders are told. Each lock is held until its holder has closed the stream, or
    /// has had its `stop_after_ms`. So this takes at most 21 s (`UNREAD`, `STOP_AFTER` and 1 s). Call it before [`Client::close`].
    ///
    /// # Cancel safety
    /// Dropped midway, the streams end all the same.
    ///
    /// [`Client::close`]: fencepost_core::Client::close
    pub async fn end(&self) {
        self.0.send_replace(true);
        // A stream that is not read is told nothing, and is ended after UNREAD.
        let limit = UNREAD + STOP_AFTER + Duration::from_secs(1);
        let _ = tokio::time::timeout(limit, self.0.closed()).await;
    }

    /// Returns what says that the streams end. The end waits until it is dropped.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}
