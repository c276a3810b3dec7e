//! The locks, whose requests block.

use std::ops::Deref;
use std::time::Duration;

use super::drive::complete;
use super::guard::Guard;
use super::request::{Blocking, Request};
use crate::{Acquire, AcquireAll, Begin, Kind, Leader, Result, Run, TryAcquire, TryAcquireAll};

macro_rules! lock {
    ($($name:ident { $($call:ident($($argument:ident: $type:ty)?) -> $request:ident;)* })*) => {$(
        #[doc = concat!("See [`", stringify!($name), "`](crate::", stringify!($name), "), whose other methods it has, too.")]
        #[derive(Clone, Debug)]
        pub struct $name(crate::$name);

        impl $name {
            $(
                #[doc = concat!(
                    "See [`", stringify!($name), "::", stringify!($call), "`](crate::", stringify!($name), "::", stringify!($call), ")."
                )]
                pub fn $call(&self $(, $argument: $type)?) -> Request<$request<'_>> {
                    Request(self.0.$call($($argument)?))
                }
            )*
        }

        impl Deref for $name {
            type Target = crate::$name;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl From<crate::$name> for $name {
            fn from(lock: crate::$name) -> $name {
                $name(lock)
            }
        }
    )*};
}

lock! {
    Mutex {
        lock() -> Acquire;
        try_lock() -> TryAcquire;
    }
    RwLock {
        read() -> Acquire;
        write() -> Acquire;
        try_read() -> TryAcquire;
        try_write() -> TryAcquire;
    }
    Semaphore {
        acquire() -> Acquire;
        acquire_many(n: u32) -> Acquire;
        try_acquire() -> TryAcquire;
        try_acquire_many(n: u32) -> TryAcquire;
    }
    MultiLock {
        lock() -> AcquireAll;
        try_lock() -> TryAcquireAll;
    }
    AnyLock {
        lock() -> AcquireAll;
        try_lock() -> TryAcquireAll;
    }
    StripedLock {}
    Election {
        campaign() -> Acquire;
    }
    Once {
        begin() -> Begin;
    }
    Latch {}
    Barrier {}
}

impl MultiLock {
    /// See [`MultiLock::across`](crate::MultiLock::across).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn across<'a>(parts: impl IntoIterator<Item = (&'a str, MultiLock)>) -> Result<MultiLock> {
        crate::MultiLock::across(parts.into_iter().map(|(key, lock)| (key, lock.0))).map(MultiLock)
    }

    /// See [`MultiLock::kind`](crate::MultiLock::kind).
    #[must_use]
    pub fn kind(self, kind: Kind) -> MultiLock {
        MultiLock(self.0.kind(kind))
    }

    /// See [`MultiLock::kind_of`](crate::MultiLock::kind_of).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn kind_of(self, name: &str, kind: Kind) -> Result<MultiLock> {
        self.0.kind_of(name, kind).map(MultiLock)
    }
}

impl Semaphore {
    /// See [`Semaphore::set_permits`](crate::Semaphore::set_permits).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        complete(self.0.set_permits(permits))
    }

    /// See [`Semaphore::reset_permits`](crate::Semaphore::reset_permits).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn reset_permits(&self) -> Result<()> {
        complete(self.0.reset_permits())
    }

    /// See [`Semaphore::stored_permits`](crate::Semaphore::stored_permits).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn stored_permits(&self) -> Result<Option<u32>> {
        complete(self.0.stored_permits())
    }
}

impl StripedLock {
    /// Returns the lock of a segment. `None`: there is no such segment.
    pub fn segment(&self, number: usize) -> Option<Mutex> {
        self.0.segments().get(number).cloned().map(Mutex)
    }

    /// See [`StripedLock::several`](crate::StripedLock::several).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn several(&self, numbers: impl IntoIterator<Item = usize>) -> Result<MultiLock> {
        self.0.several(numbers).map(MultiLock)
    }

    /// See [`StripedLock::free_first`](crate::StripedLock::free_first).
    pub fn free_first(&self) -> FreeFirst<'_> {
        FreeFirst(self.0.free_first())
    }
}

/// See [`FreeFirst`](crate::FreeFirst).
#[derive(Debug)]
pub struct FreeFirst<'a>(crate::FreeFirst<'a>);

/// The segments: see [`FreeFirst::next`](crate::FreeFirst::next). Drop a guard before you ask for the next.
impl Iterator for FreeFirst<'_> {
    type Item = Result<(usize, Guard)>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = complete(self.0.next()).transpose()?;
        Some(next.map(|(number, guard)| (number, guard.into())))
    }
}

impl Election {
    /// See [`Election::leader`](crate::Election::leader).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn leader(&self) -> Result<Option<Leader>> {
        complete(self.0.leader())
    }

    /// See [`Election::observe`](crate::Election::observe).
    pub fn observe(&self, interval: Duration) -> Leaders<'_> {
        Leaders(self.0.observe(interval))
    }
}

/// See [`Leaders`](crate::Leaders).
#[derive(Debug)]
pub struct Leaders<'a>(crate::Leaders<'a>);

/// The leaders, without an end: see [`Leaders::next`](crate::Leaders::next).
impl Iterator for Leaders<'_> {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(complete(self.0.next()))
    }
}

impl Once {
    /// See [`Once::retry`](crate::Once::retry).
    #[must_use]
    pub fn retry(self) -> Once {
        Once(self.0.retry())
    }
}

macro_rules! generations {
    ($($name:ident)*) => {$(
        impl $name {
            #[doc = concat!("See [`", stringify!($name), "::generation`](crate::", stringify!($name), "::generation).")]
            #[must_use]
            pub fn generation(&self, generation: u64) -> $name {
                $name(self.0.generation(generation))
            }

            #[doc = concat!("See [`", stringify!($name), "::keep`](crate::", stringify!($name), "::keep).")]
            #[must_use]
            pub fn keep(self, keep: Duration) -> $name {
                $name(self.0.keep(keep))
            }

            #[doc = concat!("See [`", stringify!($name), "::every`](crate::", stringify!($name), "::every).")]
            #[must_use]
            pub fn every(self, interval: Duration) -> $name {
                $name(self.0.every(interval))
            }
        }
    )*};
}

generations! { Latch Barrier }

impl Latch {
    /// See [`Latch::count_down`](crate::Latch::count_down).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn count_down(&self) -> Result<()> {
        complete(self.0.count_down())
    }

    /// See [`Latch::wait`](crate::Latch::wait).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        complete(self.0.wait(limit))
    }

    /// See [`Latch::remaining`](crate::Latch::remaining).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn remaining(&self) -> Result<u32> {
        complete(self.0.remaining())
    }
}

impl Barrier {
    /// See [`Barrier::enter`](crate::Barrier::enter).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn enter(&self, limit: Duration) -> Result<Inside> {
        complete(self.0.enter(limit)).map(Inside)
    }
}

/// See [`Inside`](crate::Inside).
#[derive(Debug)]
#[must_use = "the member leaves when this is dropped"]
pub struct Inside(crate::Inside);

impl Inside {
    /// See [`Inside::leave`](crate::Inside::leave).
    ///
    /// # Errors
    /// Those of the async call.
    pub fn leave(self, limit: Duration) -> Result<()> {
        complete(self.0.leave(limit))
    }
}

impl Deref for Inside {
    type Target = crate::Inside;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// See [`Firing`](crate::Firing).
#[derive(Debug)]
#[must_use = "the firing is over when its guard is dropped"]
pub enum Firing {
    /// This start runs it.
    First(Guard),
    /// It has run already.
    Already(Run),
    /// The lock is busy.
    Busy,
}

impl Blocking for crate::Firing {
    type Twin = Firing;

    fn into_blocking(self) -> Firing {
        match self {
            crate::Firing::First(guard) => Firing::First(guard.into()),
            crate::Firing::Already(run) => Firing::Already(run),
            crate::Firing::Busy => Firing::Busy,
        }
    }
}
