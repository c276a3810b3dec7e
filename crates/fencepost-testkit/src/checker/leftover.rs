//! Checks for leftovers at the end of a run, and for answers that came late or never.

use super::overlap::together;
use super::story::Book;
use super::{Finding, Kind, Promises};
use crate::history::{Patience, What};

/// Checks the end of the run, the snapshots of the engine, and the bounds of the waiting times.
pub(super) fn check(book: &Book, promises: &Promises, findings: &mut Vec<Finding>) {
    for (position, event) in &book.others {
        let (kind, resource, text) = match &event.what {
            What::Removed { resource, what } => {
                (Kind::Leftover, resource, format!("left at the engine: {what}"))
            }
            What::Listed { resource, holders } if !together(holders) => {
                let modes: Vec<String> = holders.iter().map(ToString::to_string).collect();
                (Kind::ListedOverlap, resource, format!("the engine lists holders {}", modes.join(" and ")))
            }
            _ => continue,
        };
        findings.push(Finding {
            kind,
            position: *position,
            resource: resource.clone(),
            claims: Vec::new(),
            text,
        });
    }
    for story in &book.stories {
        let mut report = |kind, position, text| {
            let (resource, claims) = (story.resource.clone(), vec![story.key]);
            findings.push(Finding { kind, position, resource, claims, text });
        };
        let answer = story.answered();
        if promises.complete && answer.is_none() {
            report(Kind::Unanswered, story.asked.pos, format!("claim {} never got an answer", story.key));
        }
        let Some((Patience::Until(until), bound)) = Some(story.patience).zip(promises.bound) else {
            continue;
        };
        let latest = until.max(story.asked.at).saturating_add(bound.as_nanos() as u64);
        let answer = answer.unwrap_or(book.end);
        if answer.at > latest && !book.paused(story.key.process, story.asked.at, answer.at) {
            let late = std::time::Duration::from_nanos(answer.at - until.max(story.asked.at));
            report(
                Kind::LateAnswer,
                answer.pos,
                format!("claim {} was answered {late:?} past its bound", story.key),
            );
        }
    }
}
