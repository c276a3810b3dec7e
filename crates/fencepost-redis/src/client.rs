//! Holds the state that the parts of one client share.

use std::sync::{Arc, OnceLock};

use fencepost_core::{Claim, Name, Runtime, Session};

use crate::claim::waiters::Places;
use crate::claim::withdrawals::Withdrawals;
use crate::config::Config;
use crate::conn::call::{Call, Lane};
use crate::conn::fresh_number;
use crate::deployment::Net;
use crate::script::queue::{Setting, TEND};

/// One client of a deployment.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) net: Arc<Net>,
    pub(crate) setting: Setting,
    pub(crate) runtime: Runtime,
    pub(crate) places: Arc<Places>,
    pub(crate) withdrawals: Arc<Withdrawals>,
    /// Distinguishes this client's sessions from those of other backends.
    pub(crate) number: u64,
    /// The session that renews all claims outside of a cluster.
    pub(crate) session: OnceLock<Arc<dyn Session>>,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        net: Arc<Net>,
        setting: Setting,
        runtime: Runtime,
        places: Arc<Places>,
    ) -> Arc<Shared> {
        let withdrawals = Arc::new(Withdrawals::new(Arc::clone(&net), runtime.clone()));
        let (number, session) = (fresh_number(), OnceLock::new());
        Arc::new(Shared { config, net, setting, runtime, places, withdrawals, number, session })
    }

    /// Returns the number of replicas that must acknowledge the claim's grant.
    pub(crate) fn replicas(&self, claim: &Claim) -> u32 {
        claim.replicas.max(self.config.replicas)
    }

    /// The lock's key and the slot it is in.
    pub(crate) fn key(&self, name: &Name) -> (Vec<u8>, u16) {
        let key = self.setting.key(name.as_str());
        let slot = self.net.slot(&key);
        (key, slot)
    }

    /// A line was longer than one call clears away: goes on in the background.
    pub(crate) fn tend(self: &Arc<Self>, name: &Name) {
        let (key, slot) = self.key(name);
        let shared = Arc::clone(self);
        // A client that waits asks each second; this is only quicker.
        self.runtime.spawn(async move { shared.go_on(Lane::Renewer, &key, slot).await });
    }

    /// Calls for what one call of a script left to others, until nothing of it is left.
    pub(crate) async fn go_on(&self, lane: Lane, key: &[u8], slot: u16) {
        let call = Call::new(&TEND, slot, self.setting.tend(key));
        while let Ok(redis::Value::Int(1)) = self.net.call(lane, &call).await {}
    }
}
