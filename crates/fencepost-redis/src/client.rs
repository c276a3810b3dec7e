//! Holds the state that the parts of one client share.

use std::sync::{Arc, OnceLock};

use fencepost_core::{Claim, Name, Runtime, Session};

use crate::claim::waiters::TrackedClaims;
use crate::claim::withdrawals::Withdrawals;
use crate::config::Config;
use crate::conn::call::{Call, Lane};
use crate::conn::fresh_number;
use crate::deployment::Deployment;
use crate::script::answer::ScriptReply;
use crate::script::queue::{RENEW, Setting};

/// One client of a deployment.
pub(crate) struct RedisClient {
    pub(crate) config: Config,
    pub(crate) deployment: Arc<Deployment>,
    pub(crate) setting: Setting,
    pub(crate) runtime: Runtime,
    pub(crate) tracked: Arc<TrackedClaims>,
    pub(crate) withdrawals: Arc<Withdrawals>,
    /// Distinguishes this client's sessions from those of other backends.
    pub(crate) number: u64,
    /// The session that renews all claims outside of a cluster.
    pub(crate) session: OnceLock<Arc<dyn Session>>,
}

impl RedisClient {
    pub(crate) fn new(
        config: Config,
        deployment: Arc<Deployment>,
        setting: Setting,
        runtime: Runtime,
        tracked: Arc<TrackedClaims>,
    ) -> Arc<RedisClient> {
        let withdrawals = Arc::new(Withdrawals::new(Arc::clone(&deployment), runtime.clone()));
        let (number, session) = (fresh_number(), OnceLock::new());
        Arc::new(RedisClient { config, deployment, setting, runtime, tracked, withdrawals, number, session })
    }

    /// Returns the number of replicas that must acknowledge the claim's grant.
    pub(crate) fn replicas(&self, claim: &Claim) -> u32 {
        claim.replicas.max(self.config.replicas)
    }

    /// The lock's key and the slot it is in.
    pub(crate) fn key(&self, name: &Name) -> (Vec<u8>, u16) {
        let key = self.setting.key(name.as_str());
        let slot = self.deployment.slot(&key);
        (key, slot)
    }

    /// A line was longer than one call clears away: goes on in the background.
    pub(crate) fn tend(self: &Arc<Self>, name: &Name) {
        let (key, slot) = self.key(name);
        let client = Arc::clone(self);
        // A client that waits asks each second; this is only quicker.
        self.runtime.spawn(async move { client.go_on(Lane::Renewer, &key, slot).await });
    }

    /// Calls for what one call of a script left to others, until nothing of it is left.
    pub(crate) async fn go_on(&self, lane: Lane, key: &[u8], slot: u16) {
        let call = Call::new(&RENEW, slot, self.setting.go_on(key));
        let more = |value: redis::Value| ScriptReply::read(&value).is_ok_and(|reply| reply.numbers == [0]);
        while self.deployment.call(lane, &call).await.is_ok_and(more) {}
    }
}
