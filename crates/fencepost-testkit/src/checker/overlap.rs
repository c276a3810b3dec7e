//! Checks that holds that exclude each other were not certain at the same time.

use super::story::Story;
use super::{Finding, Kind};
use crate::history::Mode;

/// Goes through the certain holds of one resource in order.
pub(super) fn check(stories: &[&Story], findings: &mut Vec<Finding>) {
    // (position, starts, index). At one position ends come before starts, because a tie proves nothing.
    let mut edges = Vec::new();
    for (index, story) in stories.iter().enumerate() {
        if let Some(grant) = story.grant.filter(|grant| grant.end > grant.spot.pos) {
            edges.push((grant.spot.pos, true, index));
            edges.push((grant.end, false, index));
        }
    }
    edges.sort_unstable();
    let mut held: Vec<usize> = Vec::new();
    for (position, starts, index) in edges {
        if !starts {
            held.retain(|&other| other != index);
            continue;
        }
        let new = stories[index];
        let beside = held.iter().map(|&other| stories[other]).find(|other| !other.fits(new));
        held.push(index);
        let mut report = |kind, claims: Vec<&Story>, text| {
            let claims = claims.iter().map(|story| story.key).collect();
            findings.push(Finding { kind, position, resource: new.resource.clone(), claims, text });
        };
        if let Some(other) = beside {
            let text = format!(
                "claim {} ({}) was granted while claim {} ({}) held",
                new.key, new.mode, other.key, other.mode
            );
            let permits = matches!((new.mode, other.mode), (Mode::Permits { .. }, Mode::Permits { .. }));
            report(if permits { Kind::Permits } else { Kind::Overlap }, vec![other, new], text);
        } else if let Mode::Permits { of, .. } = new.mode {
            let (sum, most) = permits(held.iter().map(|&index| stories[index].mode), of);
            if sum > u64::from(most) {
                let text = format!("with claim {} the holders had {sum} of {most} permits", new.key);
                report(Kind::Permits, held.iter().map(|&index| stories[index]).collect(), text);
            }
        }
    }
}

/// Returns how many permits the modes take together, and the largest `of` among them. The engine counts with
/// the `of` of the claim that it admitted last, and a history does not always show which one that was.
pub(super) fn permits(modes: impl Iterator<Item = Mode>, of: u32) -> (u64, u32) {
    modes.fold((0, of), |(sum, most), mode| match mode {
        Mode::Permits { n, of } => (sum + u64::from(n), most.max(of)),
        _ => (sum, most),
    })
}

/// Whether modes that were listed at one instant can be held together.
pub(super) fn together(modes: &[Mode]) -> bool {
    let pairs =
        modes.iter().enumerate().all(|(at, mode)| modes[at + 1..].iter().all(|other| mode.fits(*other)));
    let (sum, most) = permits(modes.iter().copied(), 0);
    pairs && sum <= u64::from(most)
}
