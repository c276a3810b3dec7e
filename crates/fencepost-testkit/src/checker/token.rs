//! Checks that the fencing tokens of a resource grow with every grant.

use super::story::Story;
use super::{Finding, Kind};
use crate::history::{Key, Mode};
use std::collections::HashMap;

/// Checks pairs of grants whose order is certain. Either the first was returned before the second was
/// requested; or the two exclude each other, and the second was returned later and was still valid then.
pub(super) fn check(stories: &[&Story], findings: &mut Vec<Finding>) {
    // A reader that was a writer keeps its token.
    let has_own = |story: &&Story| story.grant.is_some() && story.writer.is_none();
    let mut granted: Vec<&Story> = stories.iter().copied().filter(has_own).collect();
    granted.sort_by_key(|story| at(story));
    let mut report = |first: Key, story: &Story, text: String| {
        findings.push(Finding {
            kind: Kind::TokenOrder,
            position: at(story),
            resource: story.resource.clone(),
            claims: vec![first, story.key],
            text,
        });
    };
    // The greatest token up to each grant, and of each mode.
    let mut greatest: Vec<(u64, u64, Key)> = Vec::with_capacity(granted.len());
    let mut by_mode: HashMap<Mode, (u64, Key)> = HashMap::new();
    let mut seen: HashMap<u64, Key> = HashMap::new();
    for story in granted {
        let (token, key) = (token(story), story.key);
        let asked = greatest.partition_point(|&(position, ..)| position < story.asked.pos);
        let before = asked.checked_sub(1).map(|index| (greatest[index].1, greatest[index].2));
        let excluded =
            by_mode.iter().filter(|(mode, _)| !mode.fits(story.mode)).map(|(_, &greatest)| greatest);
        let excluded = excluded.max().filter(|_| story.valid_on_return());
        if let Some(first) = seen.insert(token, key) {
            report(first, story, format!("claims {first} and {key} both have token {token}"));
        } else if let Some((greater, first)) =
            before.into_iter().chain(excluded).max().filter(|top| top.0 > token)
        {
            let text = format!(
                "claim {key} has token {token}, claim {first} had {greater} and was granted before it"
            );
            report(first, story, text);
        }
        let top = greatest.last().map_or((token, key), |&(_, greatest, of)| (greatest, of).max((token, key)));
        greatest.push((at(story), top.0, top.1));
        let entry = by_mode.entry(story.mode).or_insert((token, key));
        *entry = (*entry).max((token, key));
    }
}

fn at(story: &Story) -> u64 {
    story.grant.map_or(u64::MAX, |grant| grant.spot.pos)
}

fn token(story: &Story) -> u64 {
    story.grant.map_or(0, |grant| grant.token)
}
