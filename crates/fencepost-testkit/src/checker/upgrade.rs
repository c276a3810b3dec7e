//! Upgrades of readers and downgrades of writers: their events, and that nobody comes before an upgrade.

use super::story::{Book, NEVER, Spot, Story, Upgrade, malformed};
use super::{Finding, Kind};
use crate::history::{Event, Key, Mode, Patience, What};
use std::collections::HashMap;
use std::sync::Arc;

impl Book {
    /// Takes an event of an upgrade. `index`: the claim to which the events of a key belong.
    pub(super) fn upgrade(
        &mut self,
        event: &Event,
        spot: Spot,
        index: &mut HashMap<Key, usize>,
        findings: &mut Vec<Finding>,
    ) {
        let Some(&reader) = index.get(&event.by) else { return };
        match event.what {
            What::DowngradeBegan => return self.downgrade(reader, spot, index, findings),
            What::Downgraded { sure } => {
                let writer =
                    self.stories[reader].writer.and_then(|writer| self.stories[writer].grant.as_mut());
                if let Some((_, confirmed)) = writer.and_then(|grant| grant.downgraded.as_mut())
                    && sure
                {
                    *confirmed = spot;
                }
                return;
            }
            _ => {}
        }
        if let What::UpgradeAsked { waits } = event.what {
            let (story, patience) =
                (&self.stories[reader], if waits { Patience::Ever } else { Patience::Try });
            let mut upgrade =
                Story::new((event.by, spot), &story.resource, Mode::Exclusive, patience, story.ttl);
            upgrade.upgrade = Some(Upgrade { reader, marked: None, unmarked: None });
            self.stories.push(upgrade);
            return;
        }
        let is_it = |story: &Story| story.upgrade.is_some_and(|upgrade| upgrade.reader == reader);
        let Some(at) = self.stories.iter().rposition(is_it) else {
            findings.push(malformed(&self.stories[reader], spot, "has an upgrade that it never asked for"));
            return;
        };
        match event.what {
            What::Marked => {
                if let Some(upgrade) = &mut self.stories[at].upgrade {
                    upgrade.marked.get_or_insert(spot);
                }
            }
            What::Upgraded { token, until } => {
                if let Some(grant) = &mut self.stories[reader].grant {
                    grant.upgraded = Some(spot);
                }
                self.stories[at].take(&What::Granted { token, until }, spot, findings);
                index.insert(event.by, at);
            }
            What::NotUpgraded { busy: true } => self.stories[at].take(&What::Busy, spot, findings),
            _ => self.stories[at].take(&What::Failed, spot, findings),
        }
    }

    /// From here on a reader stands for the writer. It holds without a gap, and with the writer's token.
    fn downgrade(
        &mut self,
        writer: usize,
        spot: Spot,
        index: &mut HashMap<Key, usize>,
        findings: &mut Vec<Finding>,
    ) {
        let story = &mut self.stories[writer];
        let Some(grant) = &mut story.grant else {
            findings.push(malformed(story, spot, "is downgraded and was never granted"));
            return;
        };
        grant.downgraded = Some((spot, NEVER));
        let (key, until) = (story.key, grant.until);
        let granted = What::Granted { token: grant.token, until };
        let mut reader = Story::new((key, spot), &story.resource, Mode::Shared, Patience::Try, story.ttl);
        reader.writer = Some(writer);
        reader.take(&granted, spot, findings);
        index.insert(key, self.stories.len());
        self.stories.push(reader);
    }

    /// An eviction may end the mark of an upgrade.
    pub(super) fn unmark(&mut self, resource: &Arc<str>, spot: Spot) {
        for story in self.stories.iter_mut().filter(|story| story.resource == *resource) {
            if let Some(upgrade) = &mut story.upgrade {
                upgrade.unmarked.get_or_insert(spot);
            }
        }
    }
}

/// Checks that no claim that was asked for after the mark of an upgrade was granted before the upgrade ended, as long as the reader
/// certainly held.
pub(super) fn check(book: &Book, stories: &[&Story], findings: &mut Vec<Finding>) {
    for waiting in stories {
        let Some((upgrade, marked)) = waiting.upgrade.and_then(|upgrade| Some((upgrade, upgrade.marked?)))
        else {
            continue;
        };
        let reader = book.stories[upgrade.reader].grant.map_or(0, |grant| grant.end);
        let ends = [waiting.answered(), upgrade.unmarked].into_iter().flatten().map(|spot| spot.pos);
        let end = ends.min().unwrap_or(u64::MAX).min(reader);
        let between = |story: &&&Story| {
            let granted = story.grant.is_some_and(|grant| grant.spot.pos < end) && story.valid_on_return();
            granted && story.asked.pos > marked.pos && story.key != waiting.key
        };
        if let Some((other, grant)) =
            stories.iter().find(between).and_then(|story| Some((story, story.grant?)))
        {
            findings.push(Finding {
                kind: Kind::Overtaken,
                position: grant.spot.pos,
                resource: other.resource.clone(),
                claims: vec![waiting.key, other.key],
                text: format!(
                    "claim {} ({}) was asked for and granted while the upgrade of claim {} waited",
                    other.key, other.mode, waiting.key
                ),
            });
        }
    }
}
