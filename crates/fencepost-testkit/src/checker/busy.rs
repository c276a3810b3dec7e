//! Checks that each "busy" had a reason.

use super::story::{End, Story};
use super::{Finding, Kind};
use crate::history::{Mode, Patience};

/// Checks each claim that was told "busy". Another claim must have been able to block it, as a holder or as a
/// waiter, at some time between the request and the answer.
pub(super) fn check(stories: &[&Story], findings: &mut Vec<Finding>) {
    if !stories.iter().any(|story| matches!(story.end, Some((End::Busy, _)))) {
        return;
    }
    // In the order of the requests. The largest `gone` of all earlier claims limits how far back a reason can
    // lie.
    let mut order: Vec<&Story> = stories.to_vec();
    order.sort_by_key(|story| story.asked.pos);
    let mut reach: Vec<u64> = Vec::with_capacity(order.len());
    for story in &order {
        let gone = if stood(story) { story.gone.pos } else { 0 };
        reach.push(gone.max(reach.last().copied().unwrap_or(0)));
    }
    for story in stories {
        // A claim whose own first grant expired before it was returned may have blocked itself.
        let Some((End::Busy, answer)) = story.end.filter(|_| story.unseated == 0) else { continue };
        let until = order.partition_point(|other| other.asked.pos <= answer.pos);
        let candidates = order[..until].iter().zip(&reach).rev();
        let candidates =
            candidates.take_while(|(_, reach)| **reach > story.asked.pos).map(|(other, _)| *other);
        if !justified(story, candidates) {
            findings.push(Finding {
                kind: Kind::UnjustifiedBusy,
                position: answer.pos,
                resource: story.resource.clone(),
                claims: vec![story.key],
                text: format!(
                    "claim {} ({}) was told busy and nothing stood in its way",
                    story.key, story.mode
                ),
            });
        }
    }
}

/// Whether the claim was ever queued or held. A claim that was told "busy" was not, unless it had a grant
/// that expired before it was returned.
fn stood(story: &Story) -> bool {
    story.unseated > 0 || !matches!(story.end, Some((End::Busy, _)))
}

fn justified<'a>(story: &Story, candidates: impl Iterator<Item = &'a Story>) -> bool {
    let mut permits = 0;
    for other in candidates.filter(|other| other.key != story.key && other.gone.pos > story.asked.pos) {
        if !stood(other) {
            continue;
        }
        let waited = other.patience != Patience::Try
            && other.grant.is_none_or(|grant| grant.spot.pos >= story.asked.pos);
        match (story.mode, other.mode) {
            _ if waited || !story.fits(other) => return true,
            (Mode::Permits { n, of }, Mode::Permits { n: m, .. }) => {
                permits += u64::from(m);
                if permits + u64::from(n) > u64::from(of) {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}
