use crate::backend::admission::Mode;

/// Says how one name of a [`MultiLock`](crate::MultiLock) is locked.
///
/// A [`Mutex`](Kind::Mutex) and a [`Write`](Kind::Write) both exclude everybody. They differ for other libraries on ZooKeeper, which
/// keep plain locks and read-write locks apart although they share a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Kind {
    /// Exclusive, as [`Mutex::lock`](crate::Mutex::lock).
    #[default]
    Mutex,
    /// Shared with other readers, as [`RwLock::read`](crate::RwLock::read).
    Read,
    /// Exclusive, among readers, as [`RwLock::write`](crate::RwLock::write).
    Write,
    /// `n` of `of` permits, as [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    Permits {
        /// The number of permits it takes.
        n: u32,
        /// The number of permits there are.
        of: u32,
    },
}

impl Kind {
    /// Returns how engines admit it.
    pub fn mode(self) -> Mode {
        match self {
            Kind::Mutex | Kind::Write => Mode::Exclusive,
            Kind::Read => Mode::Shared,
            Kind::Permits { n, of } => Mode::Permits { n, of },
        }
    }
}
