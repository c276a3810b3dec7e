//! The names for which claims of a client wait in the server's queue.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::Name;
use fencepost_core::sync::Mutex;

/// How many claims of a client wait in the server's queue, by name. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct InQueue(Arc<Mutex<HashMap<Name, usize>>>);

/// A claim that waits in the server's queue, until this is dropped.
pub(super) struct Queued {
    all: InQueue,
    name: Name,
}

impl InQueue {
    /// Adds a claim.
    pub(super) fn add(&self, name: &Name) -> Queued {
        *self.0.lock().entry(name.clone()).or_default() += 1;
        Queued { all: self.clone(), name: name.clone() }
    }

    /// Returns whether claims wait for the name. The server grants them before a claim that comes now.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.0.lock().contains_key(name)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
    }
}
