//! Guards that end as detached leases.

use super::worker::Worker;
use crate::history::{Key, What};
use fencepost_core::Guard;
use std::time::Duration;

impl Worker {
    /// Detaches the guard, waits, and then releases the lease, takes it up again, or lets it run out. Whether the engine
    /// confirmed the end.
    ///
    /// The release has begun in the history already: from then on nobody believes in the grant, but it may still stand in
    /// the way.
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
                    // It may have been lost meanwhile, and then be somebody else's.
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
