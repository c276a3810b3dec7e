//! One node of a quorum, and how it fares.

use fencepost_core::{Backend, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A node that fails is asked no more than once in this time, as long as the others are a majority.
const PROBE: Duration = Duration::from_millis(250);
/// A node that owes so many answers to requests that nobody waits for any more is one that fails.
const ARREARS: usize = 64;

pub(crate) struct Node {
    pub(crate) backend: Arc<dyn Backend>,
    /// It fails, and is asked again then. Zero: it does not.
    probe: AtomicU64,
    /// How many requests it owes answers to that nobody waits for.
    owed: AtomicUsize,
    /// It answered after the others, and is not waited for beyond a majority.
    late: AtomicBool,
    /// It has answered, and has not failed since.
    met: AtomicBool,
}

impl Node {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Node {
        Node {
            backend,
            probe: AtomicU64::default(),
            owed: AtomicUsize::default(),
            late: AtomicBool::default(),
            met: AtomicBool::default(),
        }
    }

    /// Is it worth asking now?
    pub(crate) fn is_worth(&self, now: Moment) -> bool {
        if self.is_well() {
            return true;
        }
        let probe = self.probe.load(Ordering::Relaxed);
        let next = (now + PROBE).as_nanos();
        // One of those who find that the time has come asks.
        now.as_nanos() >= probe
            && self.probe.compare_exchange(probe, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Nothing speaks against waiting for it alone.
    pub(crate) fn is_well(&self) -> bool {
        self.probe.load(Ordering::Relaxed) == 0 && self.owed.load(Ordering::Relaxed) < ARREARS
    }

    pub(crate) fn answered(&self) {
        if self.probe.load(Ordering::Relaxed) != 0 {
            self.probe.store(0, Ordering::Relaxed);
        }
        if !self.is_met() {
            self.met.store(true, Ordering::Relaxed);
        }
    }

    /// A request to it takes no more than one round trip, if all is well: none of what comes first, as a connection, is missing.
    pub(crate) fn is_met(&self) -> bool {
        self.met.load(Ordering::Relaxed)
    }

    /// Is it worth a short wait beyond a majority?
    pub(crate) fn is_punctual(&self) -> bool {
        !self.late.load(Ordering::Relaxed)
    }

    /// Such a wait was for nothing.
    pub(crate) fn straggles(&self) {
        self.late.store(true, Ordering::Relaxed);
    }

    /// It answered while others were waited for.
    pub(crate) fn keeps_up(&self) {
        if !self.is_punctual() {
            self.late.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, now: Moment) {
        self.met.store(false, Ordering::Relaxed);
        let next = (now + PROBE).as_nanos();
        let _ = self.probe.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Counts a request that nobody waits for, until the answer is dropped.
    pub(crate) fn owes(self: &Arc<Self>) -> Owed {
        self.owed.fetch_add(1, Ordering::Relaxed);
        Owed(Arc::clone(self))
    }
}

pub(crate) struct Owed(Arc<Node>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Memory;

    use super::*;

    const NOW: Moment = Moment::from_nanos(7_000_000_000);

    fn node() -> Arc<Node> {
        Arc::new(Node::new(Memory::new()))
    }

    #[test]
    fn a_node_that_fails_is_worth_one_request_in_each_quarter_of_a_second() {
        let node = node();
        assert!(node.is_well() && node.is_worth(NOW) && node.is_worth(NOW));
        node.failed(NOW);
        let mut probe = NOW + PROBE;
        for _ in 0..2 {
            assert!(!node.is_well() && !node.is_worth(probe.less(Duration::from_nanos(1))));
            assert!(node.is_worth(probe), "one asks");
            assert!(!node.is_worth(probe), "the others do not");
            probe = probe + PROBE;
        }
        node.answered();
        assert!(node.is_well() && node.is_worth(NOW));
    }

    #[test]
    fn a_node_is_met_from_its_first_answer_until_it_fails() {
        let node = node();
        assert!(!node.is_met());
        node.answered();
        assert!(node.is_met());
        node.answered();
        assert!(node.is_met());
        node.failed(NOW);
        assert!(!node.is_met());
    }

    #[test]
    fn a_node_is_punctual_unless_the_last_wait_for_it_was_for_nothing() {
        let node = node();
        assert!(node.is_punctual());
        node.straggles();
        assert!(!node.is_punctual());
        node.keeps_up();
        assert!(node.is_punctual());
    }

    #[test]
    fn a_node_that_owes_many_answers_fails_until_one_of_them_is_there() {
        let node = node();
        let mut owed: Vec<_> = (1..ARREARS).map(|_| node.owes()).collect();
        assert!(node.is_well());
        owed.push(node.owes());
        assert!(!node.is_well());
        owed.pop();
        assert!(node.is_well());
    }
}
