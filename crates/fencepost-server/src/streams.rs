//! The end of the service: of the requests that wait, the streams that hold locks, and the connections.

use std::time::Duration;

use tokio::sync::watch;

use crate::events::UNREAD;
use crate::problem::Problem;

/// Why a request or a stream ends at the end of the service.
pub(crate) const CLOSING: &str = "this copy of the service ends; ask again, or ask another copy";

/// After which silence the caller stops its work, at most. The service notices a connection that is cut off later than that: see `SILENCE`
/// in `listen.rs`.
pub(crate) const STOP_AFTER: Duration = Duration::from_secs(10);

/// How long the answers to the requests that are under way may take when all streams have ended.
const ANSWERS: Duration = Duration::from_secs(2);

/// The streams that hold locks, and the connections of all callers. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    /// Says that the service ends. Each stream that holds a lock has a receiver.
    holds: watch::Sender<bool>,
    /// Says that the streams have ended. Each connection has receivers, and each eviction and each grant that is handed over has one.
    connections: watch::Sender<bool>,
}

impl Streams {
    /// Ends the service. First all requests that wait are answered with `closing`, and so are those that come later. The holders of streams
    /// are told. Each lock is held until its holder has closed the stream, or has had its `stop_after_ms`. Then each connection ends with
    /// the answer that is under way. So this takes at most 23 s (`UNREAD`, `STOP_AFTER`, 1 s and `ANSWERS`). Call it before
    /// [`Client::close`], and accept no more connections.
    ///
    /// # Cancel safety
    /// Dropped midway, the streams end all the same.
    ///
    /// [`Client::close`]: fencepost_core::Client::close
    pub async fn end(&self) {
        self.holds.send_replace(true);
        // A stream that is not read is told nothing, and is ended after UNREAD.
        let limit = UNREAD + STOP_AFTER + Duration::from_secs(1);
        let _ = tokio::time::timeout(limit, self.holds.closed()).await;
        self.connections.send_replace(true);
        let _ = tokio::time::timeout(ANSWERS, self.connections.closed()).await;
    }

    /// Returns what says that the streams end. The end waits until it is dropped.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.holds.subscribe()
    }

    /// Counts a connection, or an eviction or a grant that is handed over. The end waits until it is dropped.
    pub(crate) fn connection(&self) -> watch::Receiver<bool> {
        self.connections.subscribe()
    }

    /// Completes when all streams have ended.
    pub(crate) async fn ended(&self) {
        // It cannot fail: this is a sender.
        let _ = self.connections.subscribe().wait_for(|ended| *ended).await;
    }

    /// Returns whether the service ends.
    pub(crate) fn is_closing(&self) -> bool {
        *self.holds.borrow()
    }

    /// Completes with the answer to a request that waits when the service ends.
    pub(crate) async fn closing(&self) -> Problem {
        // It cannot fail: this is a sender.
        let _ = self.holds.subscribe().wait_for(|closing| *closing).await;
        Problem::unavailable("closing", CLOSING)
    }
}
