//! Withdrawals that wait for room: a lock has at most a thousand tombstones.

use fencepost_core::sync::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, Runtime};

use crate::conn::call::{Call, CallError, Lane};
use crate::deployment::Deployment;
use crate::script::answer::Departed;

/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a withdrawal is sent again: as long as a tombstone lasts at most, see `entomb` in lua/queue.lua.
const LAST: Duration = Duration::from_secs(120);

/// A withdrawal that found no room for its tombstone.
struct Withdrawal {
    /// The lock's key.
    key: Vec<u8>,
    call: Call,
    until: Moment,
}

/// The withdrawals of a client that found no room for their tombstones. A task sends them again until they do.
pub(crate) struct Withdrawals {
    deployment: Arc<Deployment>,
    runtime: Runtime,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    all: Vec<Withdrawal>,
    /// There is a task that sends them.
    tended: bool,
}

impl Withdrawals {
    pub(crate) fn new(deployment: Arc<Deployment>, runtime: Runtime) -> Withdrawals {
        Withdrawals { deployment, runtime, waiting: Mutex::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Waiting) -> T) -> T {
        work(&mut self.waiting.lock())
    }

    /// Sends `call` again later, and until it leaves its tombstone.
    pub(crate) fn later(self: &Arc<Self>, key: Vec<u8>, call: Call) {
        let until = self.runtime.clock().now() + LAST;
        let tended = self.with(|waiting| {
            waiting.all.push(Withdrawal { key, call, until });
            std::mem::replace(&mut waiting.tended, true)
        });
        if tended {
            return;
        }
        let (clock, weak) = (self.runtime.clock().clone(), Arc::downgrade(self));
        self.runtime.spawn(async move {
            loop {
                clock.sleep_until(clock.now() + PAUSE).await;
                let Some(withdrawals) = weak.upgrade() else { return };
                if withdrawals.round().await {
                    return;
                }
            }
        });
    }
    /// Sends what waits. Returns whether nothing is left.
    async fn round(&self) -> bool {
        let all = self.with(|waiting| std::mem::take(&mut waiting.all));
        let (mut left, mut full, mut answers) = (Vec::new(), HashSet::new(), true);
        for withdrawal in all {
            if self.runtime.clock().now() >= withdrawal.until {
                continue;
            }
            if answers && !full.contains(&withdrawal.key) {
                let answer = self.deployment.call(Lane::Renewer, &withdrawal.call).await;
                answers = answer.is_ok();
                match answer.map(|value| Departed::read(&value)) {
                    Ok(Ok(reply)) if reply.full => _ = full.insert(withdrawal.key.clone()),
                    Ok(_) => continue,
                    Err(CallError::Said(error)) if error.is_closed() => return true,
                    Err(_) => {}
                }
            }
            left.push(withdrawal);
        }
        self.with(|waiting| {
            waiting.all.append(&mut left);
            waiting.tended = !waiting.all.is_empty();
            !waiting.tended
        })
    }
}
