//! Checks that claims are granted in the order of the queue, and that each is woken in its turn.

use super::story::{Book, End, QueuedTime, Spot, Story};
use super::{Finding, Kind, Promises};
use crate::history::Patience;
use std::time::Duration;

/// Compares each grant with the claims that were queued when it was requested.
///
/// The instant of a grant at the engine is not known. It is certainly before the grant of another claim in
/// two cases. In the first, the two exclude each other, and the other was returned later, still valid, or was
/// still waiting later. In the second, both may hold at once, and the token of the first is smaller, if
/// [`ordered_tokens`](Promises::ordered_tokens).
pub(super) fn check(stories: &[&Story], promises: &Promises, findings: &mut Vec<Finding>) {
    let mut order: Vec<&Story> = stories.iter().copied().filter(|story| !story.queued.is_empty()).collect();
    order.sort_by_key(|story| story.queued[0].from.pos);
    let mut granted: Vec<&Story> = stories.iter().copied().filter(|story| story.grant.is_some()).collect();
    granted.sort_by_key(|story| story.grant.map(|grant| grant.spot.pos));
    let mut line: Vec<&Story> = Vec::new();
    let mut next = 0;
    for new in granted {
        let Some(grant) = new.grant else { continue };
        // An upgrade goes before all that wait, and a downgrade does not wait. A claim that is unfair has a turn like others if it has
        // waited at the engine ever since it asked.
        let has_waited = promises.arrivals_seen && new.queued.len() == 1 && new.unseated <= 1;
        let waits = new.upgrade.is_none() && new.writer.is_none();
        let line_counts = waits && (!new.unfair || has_waited);
        while next < order.len() && order[next].queued[0].from.pos < grant.spot.pos {
            line.push(order[next]);
            next += 1;
        }
        line.retain(|story| story.answered().is_none_or(|spot| spot.pos > grant.spot.pos));
        let Some(first) = line.iter().find(|first| {
            line_counts && first.key != new.key && overtook(new, first, promises.ordered_tokens)
        }) else {
            continue;
        };
        findings.push(Finding {
            kind: Kind::Overtaken,
            position: grant.spot.pos,
            resource: new.resource.clone(),
            claims: vec![first.key, new.key],
            text: format!(
                "claim {} ({}) was granted before claim {} ({}), which waited in the queue when it was asked for",
                new.key, new.mode, first.key, first.mode
            ),
        });
    }
}

/// Whether `new`, which was returned, was certainly granted while `first` was queued before it.
fn overtook(new: &Story, first: &Story, ordered_tokens: bool) -> bool {
    let Some(grant) = new.grant else { return false };
    let good = |time: &&QueuedTime| {
        let kept = time.until > grant.spot.at && time.gone.is_none_or(|gone| gone.pos > grant.spot.pos);
        time.from.pos < new.asked.pos && kept
    };
    let Some(time) = first.queued.iter().find(good) else { return false };
    match (first.grant, first.end) {
        // Both may hold at once, so only the tokens give the order. They say nothing if `first` had an earlier
        // grant that it never saw.
        (Some(late), _) if first.fits(new) => {
            ordered_tokens && first.queued.len() == 1 && first.unseated <= 1 && late.token > grant.token
        }
        (Some(_), _) => first.valid_on_return(),
        // `first` may have been granted as well, and ended without knowing.
        (None, _) if first.fits(new) => false,
        // It was told later that it still waits.
        _ if time.last.pos > grant.spot.pos => true,
        (None, Some((End::TimedOut, _))) => {
            matches!(first.patience, Patience::Until(until) if until > grant.spot.at)
        }
        // The instant at which it left the queue is not known.
        (None, Some(_)) => false,
        (None, None) => first.died.is_none(),
    }
}

/// Checks that a claim that is alone at the resource, and is queued, is granted within `prompt`.
pub(super) fn check_prompt(book: &Book, stories: &[&Story], prompt: Duration, findings: &mut Vec<Finding>) {
    let mut edges = Vec::new();
    for (index, story) in stories.iter().enumerate() {
        edges.push((story.asked, true, index));
        if story.gone.pos < book.end.pos {
            edges.push((story.gone, false, index));
        }
    }
    edges.push((book.end, false, usize::MAX));
    // At equal positions starts come before ends: then a tie never makes a claim look alone.
    edges.sort_unstable_by_key(|&(spot, starts, index)| (spot.pos, spot.at, !starts, index));
    let (mut count, mut sum, mut since) = (0usize, 0usize, book.end);
    for (spot, starts, index) in edges {
        let only = (count == 1).then(|| stories[sum]);
        if let Some((story, alone)) = only.and_then(|story| Some((story, alone(book, story, since, spot)?)))
            && alone > prompt
        {
            findings.push(Finding {
                kind: Kind::Unwoken,
                position: since.pos,
                resource: story.resource.clone(),
                claims: vec![story.key],
                text: format!("claim {} was alone in the queue for {alone:?} and was not granted", story.key),
            });
        }
        match (starts, index) {
            (_, usize::MAX) => {}
            (true, _) => (count, sum) = (count + 1, sum + index),
            (false, _) => (count, sum) = (count - 1, sum - index),
        }
        since = spot;
    }
}

/// Returns how long the claim was queued between the two spots without an answer while its process ran.
fn alone(book: &Book, story: &Story, since: Spot, to: Spot) -> Option<Duration> {
    let time = story.queued.last()?;
    let from = time.from.at.max(since.at);
    let ends = [story.answered(), time.gone, Some(book.end), Some(to)];
    let stop = ends.into_iter().flatten().map(|spot| spot.at).min()?;
    let alone = stop.checked_sub(from).filter(|_| !book.paused(story.key.process, from, stop))?;
    Some(Duration::from_nanos(alone))
}
