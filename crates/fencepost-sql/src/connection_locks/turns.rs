//! One claim of a client for each name waits in the server's queue. The server would grant the claims of a process that is stopped one after
//! the other, each to nobody, until the idle timeout of its connection.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::sync::Mutex;
use fencepost_core::{Moment, Name, Runtime};
use futures_util::future::{BoxFuture, Either, select};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;

/// The idle timeout of a connection that waits for a lock: how long a process that is stopped keeps a lock that the server grants to it.
/// The first statement after the grant raises it to the lease.
pub(super) const WAIT_IDLE: Duration = Duration::from_secs(2);

/// How often a client asks whether the server answers while claims wait for their turns.
const REACH: Duration = Duration::from_secs(3);

/// The turns of a client's claims, by name. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<State>);

#[derive(Default)]
struct State {
    names: Mutex<HashMap<Name, Weak<Semaphore>>>,
    /// When the server last answered a claim that asked.
    answered: Mutex<Option<Moment>>,
}

/// The turn of a claim, until this is dropped.
pub(super) struct Turn {
    turns: Turns,
    name: Name,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for the turn of a claim, first come, first served. Calls `queued` if it has to wait and the server has answered within [`REACH`].
    ///
    /// # Errors
    /// Those of `reach`, which asks the server.
    pub(super) async fn take(
        &self,
        name: &Name,
        runtime: &Runtime,
        reach: impl Fn() -> BoxFuture<'static, Result<(), Failure>>,
        queued: impl Fn(),
    ) -> Result<Turn, Failure> {
        let turn = {
            let mut turns = self.0.names.lock();
            let existing = turns.get(name).and_then(Weak::upgrade);
            existing.unwrap_or_else(|| {
                let turn = Arc::new(Semaphore::new(1));
                turns.insert(name.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        let clock = runtime.clock();
        let mut permit = match Arc::clone(&turn).try_acquire_owned() {
            Ok(permit) => return Ok(self.turn(name, permit)),
            Err(_) => Box::pin(turn.acquire_owned()),
        };
        loop {
            // One answer counts for all claims.
            let answered = *self.0.answered.lock();
            if answered.is_none_or(|answered| clock.now() >= answered + REACH) {
                reach().await?;
                *self.0.answered.lock() = Some(clock.now());
            }
            queued();
            match select(permit, pin!(clock.sleep_until(clock.now() + REACH))).await {
                Either::Left((taken, _)) => return Ok(self.turn(name, taken.map_err(|_| Failure::closed())?)),
                Either::Right((_, waiting)) => permit = waiting,
            }
        }
    }

    /// Returns whether a claim for the name has its turn. The server grants it before a claim that comes now.
    pub(super) fn is_taken(&self, name: &Name) -> bool {
        self.0.names.lock().get(name).is_some_and(|turn| turn.strong_count() > 0)
    }

    fn turn(&self, name: &Name, permit: OwnedSemaphorePermit) -> Turn {
        Turn { turns: self.clone(), name: name.clone(), permit: Some(permit) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.0.names.lock();
        self.permit = None;
        if turns.get(&self.name).is_some_and(|turn| turn.strong_count() == 0) {
            turns.remove(&self.name);
        }
    }
}
