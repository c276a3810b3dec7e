//! The connections by which a request may still arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Remembers the connections over which a claim has asked for its lock and has no answer. A server executes the requests of one
/// connection in their order: an answer covers all requests that were sent over its connection before.
#[derive(Default)]
pub(crate) struct UnansweredRequests {
    /// The number of the connection, or 0.
    connection: AtomicU64,
    /// There are others: no answer covers them all.
    several: AtomicBool,
}

impl UnansweredRequests {
    /// Notes a request that is sent over this connection.
    pub(crate) fn sent(&self, connection: u64) {
        let before = self.connection.swap(connection, Ordering::Relaxed);
        if before != 0 && before != connection {
            self.several.store(true, Ordering::Relaxed);
        }
    }

    /// Notes an answer that came over this connection.
    pub(crate) fn answered(&self, connection: u64) {
        if !self.several.load(Ordering::Relaxed) {
            let known = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.connection.compare_exchange(connection, 0, known.0, known.1);
        }
    }

    /// Returns whether every request has its answer.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a request may arrive later than one that is sent over this connection now.
    pub(crate) fn may_overtake(&self, connection: u64) -> bool {
        let known = self.connection.load(Ordering::Relaxed);
        self.several.load(Ordering::Relaxed) || known != 0 && known != connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_covers_what_was_sent_over_its_connection() {
        let unanswered = UnansweredRequests::default();
        assert!(unanswered.is_over() && !unanswered.may_overtake(1));
        unanswered.sent(1);
        unanswered.sent(1);
        assert!(!unanswered.is_over() && !unanswered.may_overtake(1) && unanswered.may_overtake(2));
        unanswered.answered(2);
        assert!(!unanswered.is_over(), "another connection's answer says nothing");
        unanswered.answered(1);
        assert!(unanswered.is_over() && !unanswered.may_overtake(2));
    }

    #[test]
    fn with_several_connections_any_of_them_may_be_late() {
        let unanswered = UnansweredRequests::default();
        unanswered.sent(1);
        unanswered.sent(2);
        unanswered.answered(2);
        assert!(!unanswered.is_over() && unanswered.may_overtake(1) && unanswered.may_overtake(2));
    }
}
