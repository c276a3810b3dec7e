//! Claims of two resources at once.

use super::cancel::{GiveUp, unless};
use super::setup::LONGEST_LEASE;
use super::worker::{Resource, Worker};
use crate::history::{Mode, Patience, What};
use std::time::Duration;

impl Worker {
    /// Acquires the first two resources together and holds them for a while. The history has a claim for
    /// each. A claim that failed counts as dropped, because it may have held one resource while the other was
    /// busy.
    pub(super) async fn claim_two(&mut self, resources: &[Resource]) {
        let names = [resources[0].name.clone(), resources[1].name.clone()];
        let wait = self.time(Duration::from_secs(4));
        let (tries, ttl) = (self.rng.chance(400), LONGEST_LEASE.as_nanos() as u64);
        let patience =
            if tries { Patience::Try } else { Patience::Until((self.clock.now() + wait).as_nanos()) };
        let keys: Vec<_> = names
            .iter()
            .map(|name| self.recorder.asked_by(self.client, name, Mode::Exclusive, patience, ttl))
            .collect();
        let both = self.locks.multi(names.iter().map(|name| &**name)).expect("good names");
        let request =
            async { if tries { both.try_lock().await } else { both.lock().wait(wait).await.map(Some) } };
        let give_up = match self.rng.below(10) {
            0 => GiveUp::Polls(self.rng.below(8) as u32),
            1 => GiveUp::At(self.clock.now() + self.time(Duration::from_secs(3))),
            _ => GiveUp::Never,
        };
        let Some(Ok(Some(all))) = unless(give_up, &self.clock, request).await else {
            keys.iter().for_each(|&key| self.recorder.record(key, What::Dropped));
            return;
        };
        for (&key, guard) in keys.iter().zip(all.guards()) {
            let granted = What::Granted { token: guard.token().get(), until: guard.valid_until().as_nanos() };
            self.recorder.record(key, granted);
        }
        let work = self.time(LONGEST_LEASE / 3);
        self.sleep(work).await;
        let mut held = true;
        for (&key, guard) in keys.iter().zip(all.guards()) {
            held &= self.ensure(key, guard);
        }
        keys.iter().for_each(|&key| self.recorder.record(key, What::ReleaseBegan));
        if !held {
            // A loss of one of them releases the others.
            return;
        }
        let sure = all.release().await.is_ok();
        keys.iter().for_each(|&key| self.recorder.record(key, What::Released { sure }));
    }
}
