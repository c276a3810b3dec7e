//! Folders in which claims of this client have followed each other with nobody else there.
//!
//! The next one is likely to be alone too, and asks for no more than that: a request that also says what to do beside others costs the
//! server a tenth of the whole, because it is read, written and read again, used or not. Where somebody is there after all, it costs
//! one request more.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// So many followed each other before the next is taken to be alone.
const RUN: u32 = 4;
/// So many folders are remembered; beyond that all are forgotten.
const MOST: usize = 256;

/// How many followed each other in each folder.
#[derive(Default)]
pub(crate) struct Calm(Mutex<HashMap<Vec<u8>, u32>>);

/// How many claims came before this one with nobody between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run(u32);

impl Run {
    /// Is the next one likely to be alone?
    pub(crate) fn is_long(self) -> bool {
        self.0 >= RUN
    }
}

impl Calm {
    /// A claim asks for the folder. Until it has left others of this client find no run there.
    pub(crate) fn begin(&self, folder: &[u8]) -> Run {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Run(runs.get_mut(folder).map_or(0, std::mem::take))
    }

    /// A claim that was alone at its grant leaves.
    pub(crate) fn end(&self, folder: &[u8], run: Run) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let length = run.0.saturating_add(1);
        match runs.get_mut(folder) {
            Some(known) => *known = length,
            None => {
                if runs.len() >= MOST {
                    runs.clear();
                }
                runs.insert(folder.to_owned(), length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_grows_by_claims_that_follow_each_other() {
        let calm = Calm::default();
        for _ in 0..RUN {
            let run = calm.begin(b"a/");
            assert!(!run.is_long());
            calm.end(b"a/", run);
        }
        assert!(!calm.begin(b"b/").is_long());
        assert!(calm.begin(b"a/").is_long());
        // The one before has not left, or was not alone.
        assert!(!calm.begin(b"a/").is_long());
    }

    #[test]
    fn few_folders_are_remembered() {
        let calm = Calm::default();
        for folder in 0..10 * MOST {
            calm.end(folder.to_string().as_bytes(), Run(RUN));
        }
        assert!(calm.0.lock().unwrap().len() <= MOST);
    }
}
