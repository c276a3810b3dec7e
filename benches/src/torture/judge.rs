//! The findings in the histories of one segment after the other.

use crate::command::Place;
use fencepost_testkit::checker::{Promises, check};
use fencepost_testkit::history::{History, What};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long after the end of its session a holder may still believe in its lock: the processes of a run share few cores.
const TOLD: Duration = Duration::from_millis(500);

/// Judges segments.
pub(super) struct Judge {
    promises: Promises,
    /// The highest token of each lock in the segments so far.
    last: BTreeMap<String, u64>,
    pub(super) findings: Vec<String>,
}

impl Judge {
    /// A killed process leaves what it had for its lease, and servers that start again answer nobody meanwhile: so long.
    pub(super) fn new(linger: Duration) -> Judge {
        let promises = Promises { linger, complete: false, told: TOLD, ..Promises::default() };
        Judge { promises, last: BTreeMap::new(), findings: Vec::new() }
    }

    /// Judges a segment's history; the number of its cycles.
    pub(super) fn hear(&mut self, place: &Place) -> usize {
        let folder = std::fs::read_dir(place.file("")).expect("the histories");
        let files = folder.flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "history"));
        let history = History::read(files).expect("histories that can be read");
        self.findings.extend(check(&history, &self.promises).iter().map(ToString::to_string));
        let mut names = BTreeMap::new();
        let (mut cycles, mut tokens): (usize, BTreeMap<String, (u64, u64)>) = (0, BTreeMap::new());
        for event in history.events() {
            match &event.what {
                What::Asked { resource, .. } => drop(names.insert(event.by, resource.to_string())),
                What::Granted { token, .. } => {
                    cycles += 1;
                    let Some(name) = names.get(&event.by) else { continue };
                    let range = tokens.entry(name.clone()).or_insert((*token, *token));
                    *range = (range.0.min(*token), range.1.max(*token));
                }
                _ => {}
            }
        }
        for (name, (first, highest)) in tokens {
            let before = self.last.insert(name.clone(), highest).unwrap_or(0);
            if first <= before {
                self.findings.push(format!("token {first} of {name} after {before} in the segment before"));
            }
        }
        cycles
    }
}
