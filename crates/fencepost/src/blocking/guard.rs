//! Guards whose calls block.

use std::ops::Deref;
use std::time::Duration;

use super::drive::{complete, drive};
use super::request::Blocking;
use crate::{DetachedLease, Loss, Name, Result, State};

macro_rules! guard {
    ($name:ident) => {
        #[doc = concat!("See [`", stringify!($name), "`](crate::", stringify!($name), "), whose other methods it has, too.")]
        #[must_use = "the lock is released when the guard is dropped"]
        #[derive(Debug)]
        pub struct $name(crate::$name);

        impl $name {
            #[doc = concat!("See [`", stringify!($name), "::release`](crate::", stringify!($name), "::release).")]
            ///
            /// # Errors
            /// Those of the async call. Inside an async task the guard is dropped, which releases it in the background.
            pub fn release(self) -> Result<()> {
                complete(self.0.release())
            }

            /// Returns the guard for async code.
            pub fn into_async(self) -> crate::$name {
                self.0
            }
        }

        impl Deref for $name {
            type Target = crate::$name;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl From<crate::$name> for $name {
            fn from(guard: crate::$name) -> $name {
                $name(guard)
            }
        }

        impl Blocking for crate::$name {
            type Twin = $name;

            fn into_blocking(self) -> $name {
                $name(self)
            }
        }
    };
}
guard!(Guard);
guard!(ReentrantGuard);
guard!(MultiGuard);

macro_rules! of_one_lock {
    ($($name:ident)*) => {$(
        impl $name {
            /// Blocks until the lock is lost: see [`Guard::lost`](crate::Guard::lost).
            ///
            /// # Errors
            /// [`is_invalid`](crate::Error::is_invalid) inside an async task.
            pub fn lost(&self) -> Result<Loss> {
                drive(self.0.lost())
            }

            /// Blocks until the lock is in doubt or lost: see [`Guard::suspect`](crate::Guard::suspect).
            ///
            /// # Errors
            /// [`is_invalid`](crate::Error::is_invalid) inside an async task.
            pub fn suspect(&self) -> Result<State> {
                drive(self.0.suspect())
            }

            /// Runs `work` to its end, and fails if the lock is lost by then.
            ///
            /// # Errors
            /// [`is_lost`](crate::Error::is_lost) before or after `work`.
            pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
                self.0.ensure_held()?;
                let value = work();
                self.0.ensure_held().map(|()| value)
            }
        }
    )*};
}
of_one_lock!(Guard ReentrantGuard);

impl Guard {
    /// See [`Guard::extend`](crate::Guard::extend).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn extend(&mut self, ttl: Duration) -> Result<()> {
        complete(self.0.extend(ttl))
    }

    /// See [`Guard::upgrade`](crate::Guard::upgrade). `wait`: how long to wait for the other readers; `None`: without a limit.
    ///
    /// # Errors
    /// Those of the async call.
    pub fn upgrade(&mut self, wait: Option<Duration>) -> Result<()> {
        let upgrade = self.0.upgrade();
        let upgrade = match wait {
            Some(wait) => upgrade.wait(wait),
            None => upgrade,
        };
        complete(upgrade.into_future())
    }

    /// Upgrades as [`upgrade`](Guard::upgrade) does. Meanwhile it evicts other readers that are overdue: see
    /// [`Upgrade::evict_overdue`](crate::Upgrade::evict_overdue).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn upgrade_evicting_overdue(&mut self, wait: Option<Duration>) -> Result<()> {
        let upgrade = self.0.upgrade().evict_overdue();
        let upgrade = match wait {
            Some(wait) => upgrade.wait(wait),
            None => upgrade,
        };
        complete(upgrade.into_future())
    }

    /// See [`Guard::try_upgrade`](crate::Guard::try_upgrade).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn try_upgrade(&mut self) -> Result<bool> {
        complete(self.0.try_upgrade().into_future())
    }

    /// See [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn downgrade(&mut self) -> Result<()> {
        complete(self.0.downgrade())
    }

    /// See [`Guard::detach`](crate::Guard::detach).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn detach(self) -> Result<DetachedLease> {
        complete(self.0.detach())
    }

    /// See [`Guard::native`](crate::Guard::native).
    pub fn native(&mut self) -> Option<&mut (dyn std::any::Any + Send)> {
        self.0.native()
    }
}

impl MultiGuard {
    /// Blocks until one of the locks is lost: see [`MultiGuard::lost`](crate::MultiGuard::lost).
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) inside an async task.
    pub fn lost(&self) -> Result<(Name, Loss)> {
        drive(self.0.lost())
    }

    /// Returns the guards: see [`MultiGuard::into_guards`](crate::MultiGuard::into_guards).
    pub fn into_guards(self) -> Vec<Guard> {
        self.0.into_guards().into_iter().map(Guard).collect()
    }
}
