//! The guard of a request that is not finished.

use std::ops::Deref;

use crate::guard::Guard;

/// A guard that the caller gets only if the rest of its request is done. Its drop withdraws the grant: it is kept for no least time, and
/// the engine keeps no run of it.
pub(crate) struct Unfinished(Option<Guard>);

impl Unfinished {
    pub(crate) fn new(guard: Guard) -> Unfinished {
        Unfinished(Some(guard))
    }

    pub(crate) fn finish(mut self) -> Guard {
        self.0.take().expect("the guard is there until it is finished")
    }
}

impl Deref for Unfinished {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        self.0.as_ref().expect("the guard is there until it is finished")
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.withdraw();
        }
    }
}
