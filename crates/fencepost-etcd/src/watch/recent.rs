//! Recent grants. After [`LONG`] the key of a grant gets a watch of its own; a shorter lock costs only an item of this queue.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::Moment;
use fencepost_core::sync::Mutex;

use crate::claim::state::{ClaimState, Phase};

/// A grant of this age is watched.
const LONG: Duration = Duration::from_secs(1);
/// The shortest time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Grants in the order in which they were made.
#[derive(Default)]
pub(crate) struct RecentGrants(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    grants: VecDeque<(Moment, Weak<ClaimState>)>,
    /// The watch's task will check them.
    check_planned: bool,
}

impl RecentGrants {
    /// Adds a grant. Returns when the watch's task has to check, unless it knows that already.
    pub(crate) fn add(&self, now: Moment, state: &Arc<ClaimState>) -> Option<Moment> {
        let mut recent = self.0.lock();
        while recent.grants.front().is_some_and(|(_, first)| first.strong_count() == 0) {
            recent.grants.pop_front();
        }
        recent.grants.push_back((now + LONG, Arc::downgrade(state)));
        let planned = std::mem::replace(&mut recent.check_planned, true);
        (!planned).then_some(now + LONG)
    }

    /// Takes out the grants that are held for long. Also returns when to check again.
    pub(crate) fn take_long(&self, now: Moment) -> (Vec<Arc<ClaimState>>, Moment) {
        let mut recent = self.0.lock();
        let mut long = Vec::new();
        while let Some((_, state)) = recent.grants.pop_front_if(|(due, _)| *due <= now) {
            long.extend(state.upgrade().filter(|state| matches!(state.phase(), Phase::Holding(_))));
        }
        let next = recent.grants.front().map(|(due, _)| (*due).max(now + CHECK_INTERVAL));
        recent.check_planned = next.is_some();
        (long, next.unwrap_or(Moment::NEVER))
    }
}
