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
pub(super) struct Faults {
    locks: Mutex<HashMap<String, Lock>>,
    /// A fault of all locks.
    all: Mutex<Option<Fault>>,
}

struct Lock {
    number: u64,
    fault: Option<Fault>,
}

impl Faults {
    pub(super) fn set(&self, name: &str, fault: Option<Fault>) {
        self.on(name, |lock| lock.fault = fault);
    }

    pub(super) fn of(&self, name: &str) -> Option<Fault> {
        self.of_all().or_else(|| self.locks.lock().get(name).and_then(|lock| lock.fault))
    }

    pub(super) fn set_all(&self, fault: Option<Fault>) {
        *self.all.lock() = fault;
    }

    pub(super) fn of_all(&self) -> Option<Fault> {
        *self.all.lock()
    }

    /// Returns a number that no other lock has.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.on(name, |lock| lock.number)
    }

    fn on<T>(&self, name: &str, work: impl FnOnce(&mut Lock) -> T) -> T {
        let mut locks = self.locks.lock();
        let number = locks.len() as u64;
        work(locks.entry(name.to_owned()).or_insert(Lock { number, fault: None }))
    }
}
