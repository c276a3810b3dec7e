//! Locks of the standard library without poisoning: a panic in one task does not make the others panic.

use std::sync::{LockResult, PoisonError, TryLockError};

// Shuttle decides which thread goes on at each of its own: see the module `schedules`.
#[cfg(all(test, fencepost_shuttle))]
use shuttle::sync;
#[cfg(not(all(test, fencepost_shuttle)))]
use std::sync;

pub(crate) use sync::atomic;
pub use sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutex that ignores poisoning.
#[derive(Default, Debug)]
pub struct Mutex<T>(sync::Mutex<T>);

/// A read-write lock that ignores poisoning.
#[derive(Default, Debug)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        ignore_poison(self.0.lock())
    }

    /// Locks the mutex unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Ok(guard) => Some(guard),
        }
    }

    /// Returns the value; the exclusive reference is the lock.
    pub fn get_mut(&mut self) -> &mut T {
        ignore_poison(self.0.get_mut())
    }

    /// Consumes the mutex and returns the value.
    pub fn into_inner(self) -> T {
        ignore_poison(self.0.into_inner())
    }
}

impl<T> RwLock<T> {
    /// Creates a lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    /// Locks the lock for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        ignore_poison(self.0.read())
    }

    /// Locks the lock for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        ignore_poison(self.0.write())
    }
}

fn ignore_poison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
