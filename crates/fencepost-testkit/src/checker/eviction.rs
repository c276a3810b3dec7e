//! The effect of evictions on the stories.

use super::story::{Book, Spot, Story};
use crate::history::{Event, History, What};
use std::sync::Arc;

impl Book {
    pub(super) fn evict(&mut self, resource: &Arc<str>, token: u64, spot: Spot) {
        for story in self.stories.iter_mut().filter(|story| story.resource == *resource) {
            if let Some(grant) = story.grant.as_mut().filter(|grant| grant.token == token) {
                grant.evicted.get_or_insert(spot);
            }
        }
    }

    /// Handles the eviction of a grant that no caller has received yet. The position in the queue that it came
    /// from is gone, and no event shows which claim had it.
    pub(super) fn unseat(&mut self, resource: &Arc<str>, spot: Spot) {
        let waiting = |story: &&mut Story| story.resource == *resource && story.answered().is_none();
        for story in self.stories.iter_mut().filter(waiting) {
            story.doubted = spot.at;
            if let Some(time) = story.queued.last_mut() {
                time.gone.get_or_insert(spot);
            }
        }
    }

    /// Handles the eviction of a grant that may be that of an upgrade whose reply was lost. Its reader is evicted then.
    pub(super) fn evict_upgrading(&mut self, resource: &Arc<str>, spot: Spot) {
        let asked = self.stories.iter().filter(|story| story.resource == *resource && story.grant.is_none());
        let readers: Vec<usize> = asked.filter_map(|story| Some(story.upgrade?.reader)).collect();
        for reader in readers {
            if let Some(grant) = &mut self.stories[reader].grant {
                grant.evicted.get_or_insert(spot);
            }
        }
    }

    /// Whether the grant with this token was returned to a caller.
    pub(super) fn collected(history: &History, resource: &Arc<str>, token: u64) -> bool {
        let mut keys = history.events().iter().filter_map(|event| match &event.what {
            What::Granted { token: granted, .. } | What::Upgraded { token: granted, .. }
                if *granted == token =>
            {
                Some(event.by)
            }
            _ => None,
        });
        keys.any(|key| {
            let asked = |event: &&Event| event.by == key && matches!(event.what, What::Asked { .. });
            let asked = history.events().iter().find(asked).map(|event| &event.what);
            matches!(asked, Some(What::Asked { resource: asked, .. }) if asked == resource)
        })
    }
}
