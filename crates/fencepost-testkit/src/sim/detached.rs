//! Guards that end as detached leases.

use super::worker::Worker;
use crate::history::{Key, What};
use fencepost_core::Guard;
use std::time::Duration;

impl Worker {
    /// Detaches the guard and waits. Then releases the lease, attaches it again, or lets it expire. Returns
    /// whether the engine confirmed the end.
    ///
    /// The history already has the release's begin: from then on the grant does not count as held, but it may
    /// still block others.
    pub(super) async fn part_by_lease(&mut self, key: Key, guard: Guard) -> bool {
        let token = guard.token();
        let Ok(lease) = guard.detach().await else { return false };
        assert_eq!(lease.token(), token, "claim {key}: a detached grant has the token of its guard");
        let pause = self.time(Duration::from_secs(2));
        self.sleep(pause).await;
        match self.rng.below(3) {
            0 => self.locks.release(&lease).await.is_ok(),
            1 => match self.locks.attach(&lease).await {
                Ok(guard) => {
                    assert_eq!(guard.token(), token, "claim {key}: attaching is no new grant");
                    let sure = guard.release().await.is_ok();
                    // It may have been lost since, and another claim may hold the lock.
                    sure || {
                        self.recorder.record(key, What::Lost);
                        false
                    }
                }
                Err(_) => false,
            },
            _ => false,
        }
    }
}
