//! A layer whose claims wait in a queue of the process first.

use std::sync::Arc;

use fencepost_core::{Backend, Capabilities, Claim, Entry, How, LocalQueue, Operator, Reply, Result};

/// An engine with a [`LocalQueue`] before it.
pub struct Limited {
    inner: Arc<dyn Backend>,
    queue: LocalQueue,
}

impl Limited {
    /// At most `most` claims of the process wait at `inner` for one name. Those with the same `engine` share the queue.
    pub fn new(inner: Arc<dyn Backend>, most: u32, engine: &str) -> Limited {
        Limited { inner, queue: LocalQueue::new(most, engine) }
    }
}

impl Backend for Limited {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        let entry = Arc::clone(&self.inner).entry(claim, how);
        Arc::clone(&self).queue.before(entry, how, self)
    }

    fn operator(&self) -> &dyn Operator {
        self.inner.operator()
    }

    fn reach(&self) -> Reply<'_, Result<()>> {
        self.inner.reach()
    }

    fn leave_caller_runtime(&self) {
        self.inner.leave_caller_runtime();
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}
