//! Checks latches, barriers, elections, segments and firings. Each has a rule of its own, in addition to the rules of the locks that it
//! uses.

use super::{Finding, Kind, Promises};
use crate::history::{Event, History, Key, What};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Checks the rules of all primitives.
pub(super) fn check(history: &History, promises: &Promises, findings: &mut Vec<Finding>) {
    gates(history, findings);
    let mut leaders: HashMap<(&str, u64), (&str, Key)> = HashMap::new();
    let mut pieces: HashMap<(&str, u32), Key> = HashMap::new();
    let mut firings: HashMap<(&str, u32), Firing> = HashMap::new();
    for (position, Event { by, what, .. }) in history.positioned() {
        let mut found = |kind, resource: &Arc<str>, other: Key, text| {
            findings.push(Finding {
                kind,
                position,
                resource: resource.clone(),
                claims: vec![other, *by],
                text,
            });
        };
        match what {
            What::Led { resource, term, leader } => match leaders.entry((resource, *term)) {
                Entry::Occupied(known) if known.get().0 != leader => {
                    let (first, other) = *known.get();
                    found(
                        Kind::TwoLeaders,
                        resource,
                        other,
                        format!("{first} and {leader} lead in term {term}"),
                    );
                }
                entry => {
                    entry.or_insert((leader, *by));
                }
            },
            What::Sold { segment, piece } => {
                if let Some(other) = pieces.insert((segment, *piece), *by) {
                    found(Kind::SoldTwice, segment, other, format!("{other} and {by} sold piece {piece}"));
                }
            }
            What::RunBegan { job, firing } => match firings.entry((job, *firing)) {
                Entry::Occupied(known)
                    if !promises.retry || known.get().good.is_some_and(|at| at < position) =>
                {
                    let other = known.get().first;
                    found(Kind::RanAgain, job, other, format!("{other} and {by} ran firing {firing}"));
                }
                entry => {
                    entry.or_insert(Firing { first: *by, good: None });
                }
            },
            What::RunEnded { job, firing, good: true } => {
                if let Some(firing) = firings.get_mut(&(&**job, *firing)) {
                    firing.good.get_or_insert(position);
                }
            }
            _ => {}
        }
    }
}

struct Firing {
    /// The claim that ran the firing first.
    first: Key,
    /// The position of the event at which a run of the firing first ended well. `None`: none has.
    good: Option<u64>,
}

/// Checks that no claim passes a gate before enough claims have arrived at it. A gate is a latch, or one side of a barrier. A failed call
/// may have arrived at the engine, so it counts as an arrival. A member that is absent counts at any time.
fn gates(history: &History, findings: &mut Vec<Finding>) {
    let mut arrivals: HashMap<&str, Vec<(u64, Key)>> = HashMap::new();
    let mut absent: HashMap<&str, usize> = HashMap::new();
    for (position, event) in history.positioned() {
        match &event.what {
            What::Arrived { gate } => arrivals.entry(gate).or_default().push((position, event.by)),
            What::Absent { gate } => *absent.entry(gate).or_default() += 1,
            _ => {}
        }
    }
    for (position, event) in history.positioned() {
        let What::Passed { gate, of } = &event.what else { continue };
        let arrived =
            arrivals.get(&**gate).map_or(&[][..], |all| &all[..all.partition_point(|one| one.0 <= position)]);
        let absent = absent.get(&**gate).copied().unwrap_or_default();
        if arrived.len() + absent < *of as usize {
            findings.push(Finding {
                kind: Kind::OpenEarly,
                position,
                resource: gate.clone(),
                claims: arrived.iter().map(|one| one.1).chain([event.by]).collect(),
                text: format!("{} passed when {} of {of} had arrived", event.by, arrived.len()),
            });
        }
    }
}
