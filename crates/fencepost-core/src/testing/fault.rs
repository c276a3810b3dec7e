//! The faults of an engine for tests.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::time::Clock;

/// A fault of one lock.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// Each request takes effect after this time.
    Slow(Duration),
    /// Each request fails, and has no effect.
    Fails(ErrorKind),
}

impl Fault {
    /// Waits or fails.
    pub(super) async fn strike(self, clock: &Clock) -> Result<()> {
        match self {
            Fault::Slow(by) => {
                clock.sleep_until(clock.now() + by).await;
                Ok(())
            }
            Fault::Fails(kind) => {
                Err(Error::new(kind, "the test makes requests for this lock fail").on("memory"))
            }
        }
    }
}

/// The locks that a test has named, or the client has used.
#[derive(Default)]
pub(super) struct Faults(Mutex<HashMap<String, Lock>>);

struct Lock {
    number: u64,
    fault: Option<Fault>,
}

impl Faults {
    pub(super) fn set(&self, name: &str, fault: Option<Fault>) {
        self.on(name, |lock| lock.fault = fault);
    }

    pub(super) fn of(&self, name: &str) -> Option<Fault> {
        self.0.lock().get(name).and_then(|lock| lock.fault)
    }

    /// Returns a number that no other lock has.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.on(name, |lock| lock.number)
    }

    fn on<T>(&self, name: &str, work: impl FnOnce(&mut Lock) -> T) -> T {
        let mut locks = self.0.lock();
        let number = locks.len() as u64;
        work(locks.entry(name.to_owned()).or_insert(Lock { number, fault: None }))
    }
}
